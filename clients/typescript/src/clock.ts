// Two clocks, of which the one is believed that says sooner that time is up: the monotonic clock may stand still while
// the machine sleeps, and the wall clock may be set.

export interface Moment {
  readonly monotonic: number;
  readonly wall: number;
}

export const now = (): Moment => ({ monotonic: performance.now(), wall: Date.now() });

export const after = (moment: Moment, ms: number): Moment => ({ monotonic: moment.monotonic + ms, wall: moment.wall + ms });

/** The later of two moments. */
export const later = (one: Moment | undefined, other: Moment): Moment => (one && left(one) >= left(other) ? one : other);

/** Milliseconds until a moment; below zero if it has passed. */
export const left = (moment: Moment): number => Math.min(moment.monotonic - performance.now(), moment.wall - Date.now());
