//! The diagnosis, for people.

use std::time::Duration;

use tenure::explain::{Holder, Renewal, Report};

use crate::plain::plain;
use crate::show::{WAITER, shown, time};
use crate::table::{finish, table};
use crate::{duration, label};

/// How many holders and how many waiters are shown: a queue may be long.
const SHOWN_MAX: usize = 20;

/// All of it.
pub(crate) fn of(report: &Report) -> String {
    let name = plain(report.view.name.as_str());
    let (holders, waiters) = (&report.view.holders, &report.view.waiters);
    let mut text = match (holders.len(), waiters.len()) {
        (0, 0) => return format!("{name} is free: a claim would be granted at once\n{}", untold(report)),
        (0, _) => format!("{name} is waited for, and held by nobody\n"),
        (count, _) => format!("{name} is {}\n", state(report, count)),
    };
    for holder in holders.iter().take(SHOWN_MAX) {
        text.push_str(&of_holder(holder, report.looked_ms));
    }
    text.push_str(&more(holders.len()));
    if !waiters.is_empty() {
        text.push_str(&format!("\n{}{}", queue(report), more(waiters.len())));
    }
    text.push_str(&format!("\nA new claim: {}\nbreak: {}\n", wait(report), breaking(report)));
    text.push_str(&deadlocks(report));
    text.push_str(&untold(report));
    text
}

fn deadlocks(report: &Report) -> String {
    let lines = report.deadlocks.iter().take(SHOWN_MAX).map(|deadlock| format!("  {}\n", plain(&deadlock.to_string())));
    let lines: String = lines.collect();
    if lines.is_empty() {
        return lines;
    }
    format!("\nDEADLOCK: these wait for each other (`tenure deadlocks --break` ends it)\n{lines}")
}

fn state(report: &Report, holders: usize) -> String {
    let units: u64 = report.view.holders.iter().map(|holder| u64::from(holder.view.units.unwrap_or(1))).sum();
    match report.view.capacity {
        None => format!("held shared by {holders}"),
        Some(1) => "held".to_owned(),
        Some(capacity) => format!("held: {units} of {capacity} permits"),
    }
}

fn more(count: usize) -> String {
    let more = count.saturating_sub(SHOWN_MAX);
    if more == 0 { String::new() } else { format!("and {more} more\n") }
}

fn of_holder(holder: &Holder, looked_ms: u64) -> String {
    let place = match (&holder.host, holder.pid) {
        (Some(host), Some(pid)) => format!("host {}, process {pid}", plain(host)),
        _ => "its label does not tell".to_owned(),
    };
    let view = &holder.view;
    let shape = view.shape.map_or_else(|| "-".to_owned(), |shape| shape.to_string());
    let held = format!("for {}, {shape}, token {}", time(view.held), shown(view.token.as_ref()));
    let ttl =
        holder.ttl_ms.map(|ttl| format!(" (ttl {})", duration::show(Duration::from_millis(ttl)))).unwrap_or_default();
    let ends = match view.expires_in {
        Some(left) => format!("its claim ends in {}{ttl}", duration::show(left)),
        None => "not known when its claim ends".to_owned(),
    };
    format!(
        "\nHOLDER      {}\n  owner     {}\n  where     {place}\n  held      {held}\n  renewal   {}\n  \
        if it dies {ends}\n",
        plain(&label::of_holder(view)),
        shown(view.owner.as_ref()),
        renewal(holder, looked_ms),
    )
}

fn renewal(holder: &Holder, looked_ms: u64) -> String {
    let ago = holder.view.renewed.map(|ago| format!("{} ago", duration::show(ago)));
    let looked = duration::show(Duration::from_millis(looked_ms));
    let last = ago.map_or_else(String::new, |ago| format!(", the last one {ago}"));
    match holder.renewal {
        Renewal::Renewing => format!("it renews{last}"),
        Renewal::Overdue => {
            let last = holder.view.renewed.map(|ago| format!("for {}", duration::show(ago)));
            let since = last.unwrap_or_else(|| format!("within {looked}"));
            format!(
                "no renewal {since}, which is overdue: it hangs, is stopped or cut off, or was taken not to be renewed \
                (`tenure acquire`)"
            )
        }
        Renewal::NotDue => format!("none seen within {looked}, and none was due{last}"),
        Renewal::NotSeen => format!("none seen within {looked}; another library's client renews when it likes"),
        Renewal::Untold => "the store does not tell".to_owned(),
    }
}

fn queue(report: &Report) -> String {
    let mut rows = table(["HAND-OVERS", WAITER, "SHAPE", "WAITED", "OWNER"]);
    for waiter in report.view.waiters.iter().take(SHOWN_MAX) {
        let view = &waiter.view;
        rows.add_row([
            shown(waiter.hand_overs.as_ref()),
            shown(view.label.as_ref()),
            shown(view.shape.as_ref()),
            time(view.waited),
            shown(view.owner.as_ref()),
        ]);
    }
    finish(rows, &["OWNER", WAITER])
}

fn wait(report: &Report) -> String {
    let wait = &report.wait;
    let behind = match wait.hand_overs {
        Some(1) => "waits for one claim to end".to_owned(),
        Some(count) => format!("waits for {count} claims to end, if it does not fit beside them"),
        None => "asks again and again, in no order".to_owned(),
    };
    let dies = match wait.if_holders_die_ms.map(|ms| duration::show(Duration::from_millis(ms))) {
        Some(left) => format!("what is held now ends in {left} at the latest if nobody renews it"),
        None => "when what is held now ends is not known".to_owned(),
    };
    let bound = if wait.unbounded { "nothing bounds that while holders renew" } else { "nobody renews it" };
    format!("{behind}; {bound}; {dies}")
}

fn breaking(report: &Report) -> String {
    let told = &report.break_;
    if let Some(why) = told.refused {
        return format!("refused: {why}");
    }
    if told.ends == 0 {
        return "nothing to end: nobody holds it".to_owned();
    }
    let labels: Vec<String> =
        report.view.holders.iter().take(SHOWN_MAX).map(|holder| plain(&label::of_holder(&holder.view))).collect();
    let rest = told.ends.saturating_sub(labels.len());
    let rest = if rest == 0 { String::new() } else { format!(" and {rest} more") };
    let next = match (told.grants, report.in_order) {
        (0, true) => "it would be free then".to_owned(),
        (0, false) => "whoever asks next would be granted it".to_owned(),
        (1, _) => "the first waiter would be granted it".to_owned(),
        (count, _) => format!("the first {count} waiters would be granted it"),
    };
    format!("would end the claims of {}{rest}; {next}", labels.join(", "))
}

fn untold(report: &Report) -> String {
    let lines = report.untold.iter().map(|what| format!("  {what}\n"));
    let lines: String = lines.collect();
    if lines.is_empty() { lines } else { format!("\nWhat the store does not tell:\n{lines}") }
}
