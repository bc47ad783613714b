//! Claims within others of the same owner.

use tenure::backend::{Backend, ClaimRequest, Event, ReleaseRequest, Renewed, Shape};
use tenure_testkit::servers::shared;

use crate::support::{Ear, LONG, claims, name, raw, request, until};

fn nested(outer: &ClaimRequest, shape: Shape) -> ClaimRequest {
    ClaimRequest { owner: outer.owner.clone(), shape, ..request(LONG) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_within_another_has_its_number_and_keeps_its_place() {
    let servers = shared::zookeeper();
    let url = servers.url_below("/within");
    let (client, other, raw) = (Ear::at(&url).await, Ear::at(&url).await, raw(servers).await);
    let (name, outer, waits) = (name("x"), request(LONG), request(LONG));
    client.stands(&name, &outer).await;
    other.stands(&name, &waits).await;
    let inner = nested(&outer, Shape::Exclusive);
    other.stands(&name, &inner).await;
    let numbers: Vec<String> =
        claims(&raw, "/within/x").await.iter().map(|node| node[node.len() - 10..].to_owned()).collect();
    let of_first = numbers.iter().filter(|number| *number == "0000000000").count();
    assert_eq!((numbers.len(), of_first), (3, 2), "{numbers:?}");
    client.backend.release(&name, ReleaseRequest::of(&outer)).await.unwrap();
    assert!(matches!(other.renew(&name, &waits).await, Renewed::Stands(standing) if standing.state.is_err()));
    other.backend.release(&name, ReleaseRequest::of(&inner)).await.unwrap();
    assert!(matches!(other.renew(&name, &waits).await, Renewed::Stands(standing) if standing.state.is_ok()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_waited_for_its_own_owner_goes_within_it_and_nobody_passes_it_there() {
    let servers = shared::zookeeper();
    let client = Ear::at(&servers.url_below("/own")).await;
    let (name, first, mine, stranger) = (name("x"), request(LONG), request(LONG), request(LONG));
    let later = nested(&mine, Shape::Exclusive);
    client.stands(&name, &first).await;
    for waits in [&mine, &stranger, &later] {
        assert!(client.stands(&name, waits).await.state.is_err());
    }
    client.backend.release(&name, ReleaseRequest::of(&first)).await.unwrap();
    let granted = |wanted: &ClaimRequest| {
        let id = wanted.id;
        move |event: &Event| matches!(event, Event::Granted { id: heard, .. } if *heard == id)
    };
    until("both hold", async || client.heard(granted(&mine)) && client.heard(granted(&later))).await;
    client.backend.release(&name, ReleaseRequest::of(&mine)).await.unwrap();
    let Renewed::Stands(standing) = client.renew(&name, &stranger).await else { panic!("it is gone") };
    assert!(standing.state.is_err(), "the other claim of that owner still holds");
    let Renewed::Stands(standing) = client.renew(&name, &later).await else { panic!("it is gone") };
    assert!(standing.state.is_ok());
    client.backend.release(&name, ReleaseRequest::of(&later)).await.unwrap();
    until("its turn comes", async || client.heard(granted(&stranger))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_that_goes_on_reading_lets_other_readers_in() {
    let servers = shared::zookeeper();
    let client = Ear::at(&servers.url_below("/down")).await;
    let (name, writes) = (name("x"), request(LONG));
    client.stands(&name, &writes).await;
    let reads = nested(&writes, Shape::Shared);
    let other = ClaimRequest { shape: Shape::Shared, ..request(LONG) };
    assert!(client.stands(&name, &reads).await.state.is_ok());
    assert!(client.stands(&name, &other).await.state.is_err());
    client.backend.release(&name, ReleaseRequest::of(&writes)).await.unwrap();
    let granted = |event: &Event| matches!(event, Event::Granted { id, .. } if *id == other.id);
    until("the other reader holds", async || client.heard(granted)).await;
    assert!(matches!(client.renew(&name, &reads).await, Renewed::Stands(standing) if standing.state.is_ok()));
}
