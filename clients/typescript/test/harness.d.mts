// The types of what compiled tests use of harness.mjs.

export const SERVICE: string;
export function fresh(): string;
export function view(name: string): Promise<{ holders: { token: number | null }[]; waiters: { label: string }[] }>;
