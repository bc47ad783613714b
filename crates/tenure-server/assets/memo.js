// What a memo looks like to people.

const SHOWN_MAX = 500;
const LINES_MAX = 20;

/** The beginning of a memo as text; null if it is none. */
export function beginning(bytes) {
  try {
    const text = new TextDecoder('utf-8', { fatal: true }).decode(bytes);
    if (/[\u0000-\u0008\u000e-\u001f]/.test(text)) return null;
    const some = [...text.slice(0, 2 * SHOWN_MAX)].slice(0, SHOWN_MAX).join('');
    const shown = some.split('\n', LINES_MAX + 1).length > LINES_MAX ? some.split('\n', LINES_MAX).join('\n') : some;
    return shown.length < text.length ? `${shown}…` : text;
  } catch {
    return null;
  }
}
