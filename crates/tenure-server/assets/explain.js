// A diagnosis in words, from what `GET /v1/explain` answers.

import { plural, span } from './format.js';
import { labelOf } from './locks.js';

const OVERDUE = 'and should have: it hangs, is stopped or cut off, or nobody renews it';
const RENEWALS = {
  renewing: ({ last }) => (last ? `renews; it last did ${last} ago` : 'renews'),
  overdue: ({ last, looked }) => `has not renewed ${last ? `for ${last}` : `within ${looked}`}, ${OVERDUE}`,
  not_due: ({ last, looked }) => (last ? `last renewed ${last} ago, and need not have since` : `was not seen renewing within ${looked}, and need not have been`),
  not_seen: ({ looked }) => `was not seen renewing within ${looked}; another library's client renews when it likes`,
  untold: () => 'may or may not renew: the store does not tell',
};

const known = (value) => value !== null && value !== undefined;

function ofHolder(holder, looked) {
  const where = known(holder.host) ? ` (host ${holder.host}, process ${holder.pid})` : '';
  const told = { last: known(holder.renewed_ms) ? span(holder.renewed_ms) : null, looked: span(looked) };
  const renewal = (RENEWALS[holder.renewal] ?? RENEWALS.untold)(told);
  const dies = !known(holder.expires_in_ms) ? ''
    : ` If it dies, its claim ends within ${span(holder.expires_in_ms)}.`;
  return { text: `${labelOf(holder)}${where} ${renewal}.${dies}`, warn: holder.renewal === 'overdue' };
}

function ofWait({ hand_overs: before, if_holders_die_ms: dies, unbounded }) {
  if (before === 0) return 'A new claim would be granted at once.';
  const behind = !known(before) ? 'A new claim asks again and again, in no order'
    : `A new claim waits for ${plural(before, 'claim')} to end, if it does not fit beside them`;
  const bound = unbounded ? '; nothing bounds that while holders renew' : '; nobody renews what is held';
  const end = !known(dies) ? '' : `. What is held now ends within ${span(dies)} if nobody renews it`;
  return `${behind}${bound}${end}.`;
}

/** What a break would do. */
export function ofBreak({ ends, grants, refused }) {
  if (refused) return `A break would be refused: ${refused}.`;
  if (!ends) return 'There is nothing to break: nobody holds it.';
  const then = grants > 1 ? `The first ${grants} waiters would be granted it.` : grants === 1 ? 'The first waiter would be granted it.' : 'It would be free then.';
  return `A break would end ${ends === 1 ? 'the claim of one holder' : `the claims of ${ends} holders`}. ${then}`;
}

/** Sentences, each with whether it warns. */
export function sentences(report) {
  const plain = (text) => ({ text, warn: false });
  if (!report.holders.length && !report.waiters.length) return [plain('It is free: a claim would be granted at once.')];
  return [
    ...report.holders.slice(0, 8).map((holder) => ofHolder(holder, report.looked_ms)),
    ...(report.holders.length > 8 ? [plain(`And ${plural(report.holders.length - 8, 'more holder')}.`)] : []),
    ...(report.wait ? [plain(ofWait(report.wait))] : []),
    ...(report.break ? [plain(ofBreak(report.break))] : []),
    ...(report.untold?.length ? [plain(`The store does not tell ${report.untold.join('; ')}.`)] : []),
  ];
}
