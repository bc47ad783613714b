//! The list of cases. It exists once: the tests of every backend, and the check against the contract, come
//! from it.

use std::future::Future;
use std::pin::Pin;

use crate::fixture::Fixture;

/// Hands the list of cases to another macro of this crate: `for_each_case!(name! { what it needs })` calls
/// `name! { { what it needs } case case case … }`.
#[macro_export]
macro_rules! for_each_case {
    ($then:ident! { $($given:tt)* }) => {
        $crate::$then! { { $($given)* }
            tokens_strictly_increase_from_holder_to_holder
            an_expired_claim_never_blocks_the_next_one
            a_claim_that_nobody_renews_ends_at_its_ttl
            names_are_independent_of_each_other
            any_printable_name_works
            eight_clients_at_once_never_hold_together
            calls_may_be_made_by_threads_without_a_runtime

            a_free_name_is_granted_at_once
            a_held_name_is_busy_for_a_claim_that_does_not_wait
            a_busy_claim_leaves_nothing_behind
            a_claim_that_waits_is_told_its_place_and_who_holds
            waiting_claims_are_granted_in_the_order_they_came
            the_same_claim_id_again_answers_the_same_grant_and_renews_it
            the_same_claim_id_again_keeps_its_place_in_the_queue
            shared_claims_hold_together_and_exclude_exclusive_ones
            a_reader_behind_a_waiting_writer_waits
            permits_hold_together_up_to_their_number
            another_number_of_permits_is_refused_with_both_named
            permits_and_another_shape_do_not_mix
            an_owner_that_holds_re_enters_with_the_same_token_past_any_waiter
            a_re_entered_holding_ends_with_its_last_claim
            shared_within_exclusive_stays_exclusive_until_the_exclusive_claim_ends
            exclusive_within_shared_is_refused
            permits_within_permits_of_one_owner_are_refused
            re_entry_only_is_refused_unless_the_owner_holds_with_that_token

            a_renewal_keeps_a_claim_alive_beyond_its_first_ttl
            a_renewal_keeps_a_waiting_claim_in_its_place
            a_renewal_answers_that_a_waiting_claim_holds_by_now
            a_shorter_ttl_keeps_the_longer_one
            a_renewal_that_names_another_number_changes_nothing
            a_renewal_of_a_claim_the_store_lacks_answers_gone_and_puts_nothing_back
            a_batch_answers_for_each_claim_in_order

            a_release_grants_the_next_claim_and_its_client_hears_of_it
            a_release_ends_only_its_own_claim
            a_repeated_release_changes_nothing
            a_release_of_a_waiting_claim_gives_up_its_place
            a_release_with_another_number_changes_nothing
            a_release_of_a_waiting_claim_only_ends_it_while_it_waits
            a_release_of_a_waiting_claim_only_leaves_one_that_holds

            a_block_reserves_tokens_that_nobody_else_is_given
            the_next_block_is_given_while_nobody_waits
            the_next_block_is_the_release_when_somebody_waits
            a_next_block_request_that_names_another_block_changes_nothing

            a_break_ends_the_holder_and_the_next_token_is_higher
            a_broken_holder_is_told_who_and_why
            a_break_of_one_owner_leaves_the_others
            a_break_of_a_free_name_ends_nothing
            a_break_up_to_a_token_leaves_who_was_granted_after_it
            a_break_of_a_waiter_ends_it_and_it_is_told_who_and_why
            a_break_of_a_waiter_leaves_one_that_holds_and_one_with_another_number

            inspect_shows_holders_and_waiters_in_order
            inspect_tells_the_shape_of_each_holder_and_waiter
            inspect_of_a_free_name_is_empty
            inspect_tells_what_a_claim_runs_within
            a_scan_lists_names_in_use_by_prefix_in_pages
            names_that_somebody_waits_for_are_found_among_others

            the_exclusive_holder_writes_a_memo_that_anyone_reads
            a_memo_of_the_largest_size_comes_back_as_it_was_written
            a_waiter_and_a_stranger_write_no_memo
            a_reader_and_a_holder_of_permits_write_no_memo
            an_expired_or_broken_holder_writes_no_memo
            an_earlier_holder_writes_no_memo
            a_memo_is_written_with_a_token_of_the_present_block_only
            a_memo_write_with_another_number_changes_nothing
            a_memo_write_over_another_version_changes_nothing_and_answers_the_present_memo
            the_same_memo_write_again_is_one_write
            a_late_copy_of_a_memo_write_changes_nothing
            a_memo_of_another_kind_is_refused
            a_memo_outlives_the_claims_of_its_name
            a_memo_ends_when_its_time_to_be_kept_is_over
            a_name_without_a_memo_has_none
            the_store_tells_the_time
        }
    };
}

/// One statement of the contract, as a test.
#[derive(Clone, Copy)]
pub struct Case {
    /// The bullet's text, with `_` for everything between words.
    pub name: &'static str,
    /// Runs it; a broken promise panics.
    pub run: for<'a> fn(&'a Fixture) -> Running<'a>,
}

type Running<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

#[doc(hidden)]
#[macro_export]
macro_rules! __table_of_cases {
    ({} $($case:ident)*) => {
        &[$(Case { name: stringify!($case), run: |fixture| Box::pin($crate::conformance::$case(fixture)) }),*]
    };
}

/// All cases.
pub const CASES: &[Case] = for_each_case!(__table_of_cases! {});

/// Makes the tests of one backend: one for each case, and one for each case over an unreliable network.
///
/// `$factory` names an `async fn() -> Store`. A server that is missing is a failure.
#[macro_export]
macro_rules! conformance {
    ($backend:ident, $factory:expr) => {
        $crate::for_each_case! { __conformance_tests! { $backend, $factory } }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_tests {
    ({ $backend:ident, $factory:expr } $($case:ident)*) => {
        mod $backend {
            #[allow(unused_imports)] // a factory may be a path
            use super::*;

            $(
                #[test]
                fn $case() {
                    $crate::run(stringify!($case), $factory);
                }
            )*

            mod unreliable {
                #[allow(unused_imports)]
                use super::super::*;

                $(
                    #[test]
                    fn $case() {
                        $crate::run_unreliable(stringify!($case), $factory);
                    }
                )*
            }
        }
    };
}
