// Breaking a lock: asks first, and says what it will do.

import * as api from './api.js';
import { byId, el, say } from './dom.js';
import { plural } from './format.js';
import { labelOf } from './locks.js';

/** Whether the caller may break a name, as far as the service told. */
export function allowed(store, name) {
  if (!Array.isArray(store?.rights)) return true;
  const prefixes = store.prefixes ?? [];
  return store.rights.some((right) => right === 'break' || right === 'admin')
    && (prefixes.length === 0 || prefixes.some((prefix) => name.startsWith(prefix)));
}

/** Asks, and breaks what is held by `holder`, or by all who hold now. */
export function ask(lock, holder, done) {
  const dialog = byId('break');
  const holders = holder ? [holder] : lock.holders;
  // Whoever is granted it after this look has a higher token and stays.
  const token = Math.max(...holders.map((one) => one.token ?? 0));
  const reason = el('input', { id: 'break-reason', name: 'reason', autocomplete: 'off', maxlength: '200', placeholder: 'for whoever is evicted, and the log' });
  const problem = el('p', { class: 'problem', role: 'alert' });
  const confirm = el('button', { type: 'submit', class: 'danger' }, 'Break it');
  const form = el('form', {},
    el('h2', { id: 'break-title' }, 'Break this lock?'),
    el('p', { class: 'mono wrap' }, lock.name),
    el('p', { id: 'break-text' },
      holders.length === 1 ? `${labelOf(holders[0])} holds it. ` : `${plural(holders.length, 'holder')} hold it. `,
      lock.waiters.length ? `${labelOf(lock.waiters[0])} would be granted it at once. ` : 'It would be free then. ',
      'The holder is told, but may go on for a moment: only a check of the token at the resource stops its writes.'),
    el('label', { for: 'break-reason' }, 'Reason'), reason, problem,
    el('div', { class: 'actions' }, el('button', { type: 'button', on: { click: () => dialog.close() } }, 'Cancel'), confirm));
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    confirm.disabled = true;
    try {
      const broken = await api.breakLock(lock.name, token, holder ? holder.owner : null, reason.value.trim());
      dialog.close();
      say(broken === 0 ? `${lock.name}: that holder had left already` : `${lock.name} was broken`);
      done();
    } catch (error) {
      problem.textContent = error.hint ? `${error.message}: ${error.hint}` : error.message;
      confirm.disabled = false;
    }
  });
  dialog.replaceChildren(form);
  dialog.showModal();
  reason.focus();
}
