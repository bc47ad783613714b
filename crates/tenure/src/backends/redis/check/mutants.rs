//! The check is seen to fail: each of these mistakes in the script is found by it.

use super::{Scripts, run};

/// Enough to meet each of them many times; the first difference ends it.
const HISTORIES: u64 = 1_200;

/// What is wrong, the words of the script, and what they become.
const MUTANTS: &[(&str, &str, &str)] = &[
    (
        "a skipped claim goes to the tail",
        "    step = (after - place) / (#claims + 1)\n",
        "    place, step, queue.seq = queue.seq, 1, queue.seq + #claims\n",
    ),
    ("a skip is not counted", "claim.skipped = claim.skipped + 1", "claim.skipped = claim.skipped + 0.0 * 1"),
    (
        "a strict claim is passed over",
        "  claim.strict = string.find(flags, 's', 1, true) ~= nil\n",
        "  claim.strict = false\n",
    ),
    ("a token is not raised above the last", "  local token = name_last\n", "  local token = 0\n"),
    ("a block takes one token", "  queue.last = block_end\n", "  queue.last = token\n"),
    (
        "the dead make no room",
        "  queue.sweep_at = tonumber(first[2] or 0)\n  promote(queue)\n",
        "  queue.sweep_at = tonumber(first[2] or 0)\n",
    ),
    (
        "the dead are not looked for",
        "  if now_ms < queue.sweep_at then return end\n",
        "  if now_ms < queue.sweep_at + 1000 then return end\n",
    ),
    ("a repeat gets a new number", "    if known.attempt ~= asked.attempt then\n", "    if true then\n"),
    ("another attempt keeps the number", "      known.number = beyond(queue.last)\n", "\n"),
    (
        "a mark outlives the claim after it",
        "  if queue.marks > 0 and call('HDEL', queue.claims, 'm' .. claim.id) == 1 then\n",
        "  if false then\n",
    ),
    ("waiters of an owner that holds are not let in", "      re_enter_waiters(queue, head)\n", "\n"),
    ("re-entry behind waiters is not let in", "  local at_once = outer or (", "  local at_once = ("),
    ("a claim that may wait is told busy", "  if not at_once and wait == 'n' then\n", "  if not at_once then\n"),
    ("a waiter is overtaken", "(queue.waiters == 0 and fits(queue, asked))", "fits(queue, asked)"),
    ("a renewal does not extend", "  call('ZADD', queue.expiry, expires, id)\n", "\n"),
    ("a longer ttl is not taken", "  if ttl > claim.ttl then\n", "  if false then\n"),
    (
        "a wrong number releases",
        "  if not held or (number ~= '' and held.number ~= tonumber(number)) then\n",
        "  if not held then\n",
    ),
    ("a release lets nobody in", "    remove(queue, held)\n    promote(queue)\n", "    remove(queue, held)\n"),
    (
        "a block is given though others wait",
        "  if queue.waiters == 0 then\n    local token, ends",
        "  if true then\n    local token, ends",
    ),
    (
        "a late request gets a block",
        "  if held.token == 0 or held.block_end ~= block_end then",
        "  if held.token == 0 then",
    ),
    ("a break ends everybody", "    if (owner == '' or held.owner == owner) and ", "    if "),
    ("a break ends later holders too", " and (up_to == '' or held.token <= tonumber(up_to)) then\n", " then\n"),
    (
        "a break leaves the holder with the highest token that is meant",
        "held.token <= tonumber(up_to)",
        "held.token < tonumber(up_to)",
    ),
    ("a holder is ended as if it waited", "  elseif waiting_only and held.token > 0 then\n", "  elseif false then\n"),
    (
        "a waiter is left as if it held",
        "  elseif waiting_only and held.token > 0 then\n",
        "  elseif waiting_only then\n",
    ),
    ("a holder that nobody waits for is ended as if it waited", "    if waiting_only then return 2 end\n", "\n"),
    ("a break ends a waiter that holds by now", " and waiter.token == 0 then\n", " then\n"),
    ("a break ends a waiter of another number", "waiter.number == tonumber(number) and", "true and"),
    ("a break lets nobody in", "  if answer > 0 then promote(queue) end\n", "\n"),
    ("a waiter is not told its holder's ttl", "    ttl = longest_ttl(queue, ids)\n", "\n"),
    (
        "of several holders the first one's ttl is told",
        "    longest = math.max(longest, ",
        "    longest = math.max(0, ",
    ),
    ("no holder is presumed", "  if presumed > 0 and queue.holders + queue.waiters == 0 then\n", "  if false then\n"),
    ("an upgrade waits", "  return {'f', 'Upgrade'}\n", "\n"),
    ("permits are not counted", "return queue.units + claim.units <= claim.of", "return claim.units <= claim.of"),
    ("the one who asks is told as well", "  if type(answer) == 'table' then untold[answer[2]] = true end\n", "\n"),
    ("one that was ended is told of its grant", "  untold[claim.number] = true\n", "\n"),
    (
        "a new key lives for ever",
        "    queue.touch = true\n  end\n  put(queue, claim)\n",
        "  end\n  put(queue, claim)\n",
    ),
    ("a free name forgets its last token", "  if not record then return 0 end\n", "  if record then return 0 end\n"),
    (
        "a single claim's repeat shortens it",
        "      held.ttl = math.max(held.ttl, asked.ttl)\n",
        "      held.ttl = asked.ttl\n",
    ),
    (
        "the plain release ignores the number",
        "      if third ~= '' and sub(record, 26, 26 + #third) ~= third .. ' ' then\n",
        "      if false then\n",
    ),
];

/// The same for the script of memos.
const MEMO_MUTANTS: &[(&str, &str, &str)] = &[
    ("a waiter writes a memo", "from > 0 and from <=", "from <="),
    ("a reader writes a memo", " and shape == 'x'", ""),
    ("a memo is written with a token above the block", " and tonumber(token) <= to\n", "\n"),
    ("a memo is written with a token below the block", "from <= tonumber(token)", "true"),
    ("another attempt writes a memo", " and (number == '' or number == own)\n", "\n"),
    ("a dead holder writes a memo", " or tonumber(dies) <= math.floor(now / 1000) then", " then"),
    ("another claim writes a memo", "if sub(record, 2, 17) ~= id then return false end", ""),
    ("a late copy is written again", "  if last_write == write then\n", "  if false then\n"),
    (
        "a late copy of an earlier holder is refused",
        "  if last_write == write then\n",
        "  if last_write == write and may_write() then\n",
    ),
    ("a memo never ends", "present and (ends == '-' or tonumber(ends) > now)", "present"),
    ("a memo of another kind is replaced", "  if lives and last_kind ~= kind then", "  if false then"),
    ("a memo replaces any version", "  if (lives and version or '0') ~= after then", "  if false then"),
];

#[test]
fn each_mistake_can_be_made_in_the_script() {
    let Scripts { native, memo } = Scripts::sent();
    let counts = |script: String, mutants: &'static [(&str, &str, &str)]| {
        mutants.iter().map(move |(what, words, _)| (what, script.matches(words).count()))
    };
    let counts = counts(native, MUTANTS).chain(counts(memo, MEMO_MUTANTS));
    let changed: Vec<_> = counts.filter(|(_, count)| *count != 1).collect();
    assert!(changed.is_empty(), "the script has changed; found not once but: {changed:?}");
}

/// Fails unless the histories tell each of these scripts from the right one.
fn each_is_found(mutants: impl Iterator<Item = (&'static str, Scripts)>) {
    let mut missed = Vec::new();
    for (what, mutant) in mutants {
        let found = [true, false].iter().find_map(|form| run(&mutant, *form, HISTORIES, 1).err());
        match found {
            Some(found) => eprintln!(
                "found: {what}: {}",
                found.log.lines().rev().nth(1).unwrap_or_default().chars().take(120).collect::<String>()
            ),
            None => missed.push(what),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:#?}");
}

#[test]
#[ignore = "night: each of a dozen mistakes is looked for in up to 2,400 histories"]
fn each_mistake_in_the_script_of_memos_is_found() {
    let sent = Scripts::sent();
    each_is_found(
        MEMO_MUTANTS
            .iter()
            .map(|(what, words, wrong)| (*what, Scripts { memo: sent.memo.replace(words, wrong), ..sent.clone() })),
    );
}

#[test]
#[ignore = "night: each of some thirty mistakes is looked for in up to 2,400 histories"]
fn each_mistake_in_the_script_is_found() {
    let sent = Scripts::sent();
    each_is_found(
        MUTANTS
            .iter()
            .map(|(what, words, wrong)| (*what, Scripts { native: sent.native.replace(words, wrong), ..sent.clone() })),
    );
}
