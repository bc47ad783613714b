//! Looking: who holds, who waits, and which names are in use.

use tenure::backend::{ClaimRequest, Shape};
use tenure::{Name, Owner};

use crate::fixture::Fixture;

/// Inspect shows holders and waiters in order.
pub async fn inspect_shows_holders_and_waiters_in_order(fixture: &Fixture) {
    let (client, other) = (fixture.client().await, fixture.client().await);
    let (name, held) = (fixture.name("shown"), fixture.request());
    let grant = client.holds(&name, &held).await;
    let mut waiting = Vec::new();
    if client.capabilities().queue {
        for _ in 0..3 {
            let request = fixture.request();
            client.waits(&name, &request).await;
            waiting.push(request);
        }
    }
    for client in [&client, &other] {
        let view = client.inspect(&name).await;
        assert_eq!((view.name.clone(), view.capacity), (name.clone(), Some(1)));
        let [holder] = &view.holders[..] else { panic!("one holds: {view:?}") };
        let (owner, id) = client.shown(&name, &held);
        assert_eq!((holder.owner.as_ref(), holder.claims.first().map(|claim| claim.0)), (Some(&owner), Some(id)));
        assert_eq!(holder.label.as_deref(), client.capabilities().records.then_some(&*held.label));
        assert_eq!(holder.token, client.capabilities().tokens.then_some(grant.token));
        assert!(holder.expires_in.is_some_and(|left| left <= held.ttl && !left.is_zero()), "{holder:?}");
        let shown: Vec<_> = view.waiters.iter().map(|waiter| (waiter.owner.clone(), waiter.claim.0)).collect();
        let expected = waiting.iter().map(|request| client.shown(&name, request));
        assert_eq!(shown, expected.map(|(owner, id)| (Some(owner), id)).collect::<Vec<_>>());
    }
    if client.capabilities().permits {
        let name = fixture.name("shown-permits");
        client.holds(&name, &fixture.request_of(Shape::Permits { units: 2, of: 3 })).await;
        let view = client.inspect(&name).await;
        assert_eq!((view.capacity, view.holders[0].units), (Some(3), Some(2)));
    }
    if client.capabilities().sessions {
        let inner = ClaimRequest { owner: held.owner.clone(), ..fixture.request() };
        client.holds(&name, &inner).await;
        assert_eq!(client.inspect(&name).await.holders.len(), 1, "one entry for each owner");
    }
}

/// Inspect tells the shape of each holder and waiter: exclusive, shared, or how many permits of how many.
pub async fn inspect_tells_the_shape_of_each_holder_and_waiter(fixture: &Fixture) {
    let client = fixture.client().await;
    let (queue, shared, permits) =
        (client.capabilities().queue, client.capabilities().shared, client.capabilities().permits);
    let of = |shape: Shape| (Some(shape), Some(shape.units()));
    let shapes = async |name: &Name| {
        let view = client.inspect(name).await;
        let holders: Vec<_> = view.holders.iter().map(|holder| (holder.shape, holder.units)).collect();
        let waiters: Vec<_> = view.waiters.iter().map(|waiter| (waiter.shape, waiter.units)).collect();
        (holders, waiters)
    };

    let name = fixture.name("shape-exclusive");
    client.holds(&name, &fixture.request()).await;
    let mut waiting = Vec::new();
    if queue {
        client.waits(&name, &fixture.request()).await;
        waiting.push(of(Shape::Exclusive));
    }
    if queue && shared {
        client.waits(&name, &fixture.request_of(Shape::Shared)).await;
        waiting.push(of(Shape::Shared));
    }
    assert_eq!(shapes(&name).await, (vec![of(Shape::Exclusive)], waiting));

    if shared {
        let name = fixture.name("shape-shared");
        client.holds(&name, &fixture.request_of(Shape::Shared)).await;
        client.holds(&name, &fixture.request_of(Shape::Shared)).await;
        assert_eq!(shapes(&name).await, (vec![of(Shape::Shared); 2], vec![]));
    }
    if permits {
        let name = fixture.name("shape-permits");
        let (two, one) = (Shape::Permits { units: 2, of: 3 }, Shape::Permits { units: 1, of: 3 });
        client.holds(&name, &fixture.request_of(one)).await;
        client.holds(&name, &fixture.request_of(two)).await;
        let mut waiting = Vec::new();
        if queue {
            client.waits(&name, &fixture.request_of(two)).await;
            waiting.push(of(two));
        }
        assert_eq!(shapes(&name).await, (vec![of(one), of(two)], waiting));
    }
}

/// Inspect of a free name is empty, before it was ever used and afterwards.
pub async fn inspect_of_a_free_name_is_empty(fixture: &Fixture) {
    let client = fixture.client().await;
    let (name, held) = (fixture.name("free"), fixture.request());
    for _ in 0..2 {
        let view = client.inspect(&name).await;
        assert!(view.is_free() && view.capacity.is_none() && view.name == name, "{view:?}");
        client.holds(&name, &held).await;
        client.releases(&name, &held).await;
    }
}

/// Inspect tells what a claim runs within: waiting or holding, and of an owner with several claims all that they name.
pub async fn inspect_tells_what_a_claim_runs_within(fixture: &Fixture) {
    let client = fixture.client().await;
    if fixture.lacks(&client, "queue, so nobody looks for what waits for itself", |c| c.queue) {
        return;
    }
    let name = fixture.name("within");
    let [a, b, c] = [(); 3].map(|()| fixture.request().owner);
    let held = ClaimRequest { within: vec![a.clone(), b.clone()], ..fixture.request() };
    let waiting = ClaimRequest { within: vec![c.clone()], ..fixture.request() };
    client.holds(&name, &held).await;
    client.waits(&name, &waiting).await;
    client.waits(&name, &fixture.request()).await;
    let mut expected = vec![&a, &b];
    if client.capabilities().sessions {
        let within = vec![b.clone(), c.clone()];
        client.holds(&name, &ClaimRequest { owner: held.owner.clone(), within, ..fixture.request() }).await;
        expected.push(&c);
    }
    // In no order: an owner may have claimed twice.
    let texts = |owners: &[Owner]| {
        let mut texts: Vec<String> = owners.iter().map(ToString::to_string).collect();
        texts.sort();
        texts
    };
    let shown =
        |owners: &[&Owner]| texts(&owners.iter().map(|owner| client.shown_owner(&name, owner)).collect::<Vec<_>>());
    let view = client.inspect(&name).await;
    let holders: Vec<_> = view.holders.iter().map(|held| texts(&held.within)).collect();
    assert_eq!(holders, [shown(&expected)]);
    let waiters: Vec<_> = view.waiters.iter().map(|waiter| texts(&waiter.within)).collect();
    assert_eq!(waiters, [shown(&[&c]), Vec::new()]);
}

/// A scan lists names in use by prefix in pages, in byte order, each name once.
pub async fn a_scan_lists_names_in_use_by_prefix_in_pages(fixture: &Fixture) {
    let client = fixture.client().await;
    let root = fixture.name("scan");
    let under = |tail: &str| Name::new(format!("{root}{tail}")).expect("a valid name");
    // Wildcards of other languages, upper and lower case, and two names of which one begins the other.
    let mut used: Vec<_> = ["/a", "/a/b", "/A", "/B", "/b", "/%", "/_", "/*", "/é", "/z"].map(under).into();
    for name in &used {
        client.holds(name, &fixture.request()).await;
    }
    let free = under("/free");
    let ended = fixture.request();
    client.holds(&free, &ended).await;
    client.releases(&free, &ended).await;
    client.holds(&fixture.name("elsewhere"), &fixture.request()).await;
    used.sort();

    for page in [1, 2, 4, 100] {
        let (mut listed, mut after) = (Vec::new(), None);
        loop {
            let views = client.scan(under("/").as_str(), after.as_ref(), page).await;
            assert!(views.len() <= page, "{} names on a page of {page}", views.len());
            assert!(views.iter().all(|view| view.holders.len() == 1), "{views:?}");
            let Some(last) = views.last() else { break };
            after = Some(last.name.clone());
            listed.extend(views.into_iter().map(|view| view.name));
        }
        assert_eq!(listed, used, "in pages of {page}");
    }
    let some = client.scan(under("/a").as_str(), None, 100).await;
    assert_eq!(some.into_iter().map(|view| view.name).collect::<Vec<_>>(), [under("/a"), under("/a/b")]);
}

/// Names that somebody waits for are found among others, each once, as `inspect` shows them.
pub async fn names_that_somebody_waits_for_are_found_among_others(fixture: &Fixture) {
    let client = fixture.client().await;
    if fixture.lacks(&client, "queue, so nobody waits in it", |c| c.queue) {
        return;
    }
    let root = fixture.name("waited-for");
    let under = |number: usize| Name::new(format!("{root}/{number}")).expect("a valid name");
    let mut waited_for = Vec::new();
    for number in 0..9 {
        client.holds(&under(number), &fixture.request()).await;
        if number % 3 == 0 {
            client.waits(&under(number), &fixture.request()).await;
            waited_for.push(under(number));
        }
    }
    // One that nobody waits for any more.
    let gone = fixture.request();
    client.waits(&under(1), &gone).await;
    client.releases(&under(1), &gone).await;
    for limit in [10, 100] {
        let found = client.waited_for(&root, limit).await;
        assert!(found.iter().all(|view| view.holders.len() == 1 && view.waiters.len() == 1), "{found:?}");
        assert_eq!(
            found.into_iter().map(|view| view.name).collect::<Vec<_>>(),
            waited_for,
            "looked at {limit} at a time"
        );
    }
}
