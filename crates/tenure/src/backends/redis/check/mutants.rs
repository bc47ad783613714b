//! The check is seen to fail: each of these mistakes in the script is found by it.

use super::{run, script};

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
        "  if held and (number == '' or held.number == tonumber(number)) then\n",
        "  if held then\n",
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
    ("a break ends everybody", "    if owner == '' or held.owner == owner then\n", "    if true then\n"),
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

#[test]
fn each_mistake_can_be_made_in_the_script() {
    let script = script();
    let counts = MUTANTS.iter().map(|(what, words, _)| (what, script.matches(words).count()));
    let changed: Vec<_> = counts.filter(|(_, count)| *count != 1).collect();
    assert!(changed.is_empty(), "the script has changed; found not once but: {changed:?}");
}

#[test]
#[ignore = "night: each of some thirty mistakes is looked for in up to 2,400 histories"]
fn each_mistake_in_the_script_is_found() {
    let script = script();
    let mut missed = Vec::new();
    for (what, words, wrong) in MUTANTS {
        let mutant = script.replace(words, wrong);
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
