use super::client::{Events, Sent};
use super::server::{Server, Setup, failing, hanging, quick, with};
use nix::sys::signal::Signal;
use serde_json::json;
use std::collections::HashMap;

const FEED: &str = "/api/v1/events";

/// Every event of a rollout from its first to its last, none missing.
#[track_caller]
fn whole(events: &[Sent], id: &str) {
    for (number, sent) in events.iter().enumerate() {
        assert_eq!(
            (sent.id.as_str(), &sent.data["sequence"]),
            (&*number.to_string(), &json!(number))
        );
        assert_eq!(sent.data["rollout"], id);
        assert_eq!(sent.data["event"]["type"], sent.event.as_str());
    }
    assert_eq!(events.first().unwrap().event, "queued");
    assert_eq!(events.last().unwrap().event, "finished");
    let finished = events.iter().filter(|sent| sent.event == "finished").count();
    assert_eq!(finished, 1);
}

#[test]
fn a_listener_gets_every_event_and_can_come_back_anywhere() {
    let mut server = Setup::new().scripted_agent().start();
    let id = server.submit_one(&quick());
    let live: Vec<_> = server.events(&id).collect();
    whole(&live, &id);
    let kinds: Vec<_> = live.iter().map(|sent| sent.event.as_str()).collect();
    for kind in [
        "stage_started",
        "command_ended",
        "call_started",
        "call_ended",
        "agent",
        "reward",
    ] {
        assert!(kinds.contains(&kind), "{kind}: {kinds:?}");
    }
    let call = live.iter().find(|sent| sent.event == "call_ended").unwrap();
    assert!(
        call.data["event"]["call"]["prompt_tokens"].as_u64().unwrap() > 0,
        "{call:?}"
    );

    server.ended(&id);
    let check = |server: &Server| {
        assert_eq!(server.events(&id).collect::<Vec<_>>(), live);
        for after in [0, live.len() / 2, live.len() - 2, live.len() - 1] {
            let rest: Vec<_> = server.events_after(&id, &after.to_string()).collect();
            assert_eq!(rest, live[after + 1..], "after {after}");
        }
        assert_eq!(server.events_after(&id, "999999").count(), 0);
        assert_eq!(server.events_after(&id, "18446744073709551615").count(), 0);
    };
    check(&server);
    for wrong in ["x", "-1", "1.5", "1-2"] {
        let request = server.request("GET", &format!("/api/v1/rollouts/{id}/events"));
        request
            .header("last-event-id", wrong)
            .send()
            .expect_error(422, "invalid_request");
    }
    server.end(Signal::SIGTERM).expect(0);
    server.start_again();
    check(&server);
}

#[test]
fn a_listener_that_comes_back_in_the_midst_misses_nothing_and_gets_nothing_twice() {
    let server = Setup::new().arguments(&["--concurrency", "1"]).start();
    let first = server.submit_one(&hanging());
    let second = server.submit_one(&failing());
    let mut read = server.until(&first, "command_started");
    let waiting = server.until(&second, "queued");
    let last = read.last().unwrap().id.clone();
    let mut again = server.events_after(&first, &last);
    let mut of_second = server.events_after(&second, "0");
    server.cancel(&first).expect(202);
    read.extend(&mut again);
    whole(&read, &first);
    let waiting: Vec<_> = waiting.into_iter().chain(&mut of_second).collect();
    whole(&waiting, &second);
}

fn feed(server: &Server, last: Option<&str>) -> Events {
    let request = server.request("GET", FEED);
    let request = match last {
        Some(last) => request.header("last-event-id", last),
        None => request,
    };
    let mut feed = Events::of(request.open());
    let position = feed.next().unwrap();
    assert_eq!(position.event, "position");
    if let Some(last) = last.filter(|last| !last.starts_with('0')) {
        assert_eq!(position.id, last);
    }
    feed
}

#[test]
fn the_feed_tells_of_all_rollouts_and_goes_on_where_a_listener_was() {
    let mut server = Server::plain();
    let mut listener = feed(&server, None);
    let ids = server.submit(&with(failing(), json!({"n": 3})));
    let mut over = 0;
    let mut told = Vec::new();
    while over < ids.len() {
        let sent = listener.next().unwrap();
        over += usize::from(sent.event == "finished");
        told.push(sent);
    }
    let mut of_each = HashMap::<&str, Vec<&Sent>>::new();
    for sent in &told {
        of_each
            .entry(sent.data["rollout"].as_str().unwrap())
            .or_default()
            .push(sent);
    }
    for id in &ids {
        let own: Vec<_> = server.events(id).map(|sent| sent.data).collect();
        let in_feed: Vec<_> = of_each[id.as_str()]
            .iter()
            .map(|sent| sent.data.clone())
            .collect();
        assert_eq!(in_feed, own);
    }
    let middle = told.len() / 2;
    let mut again = feed(&server, Some(&told[middle].id));
    let rest: Vec<_> = again.by_ref().take(told.len() - middle - 1).collect();
    assert_eq!(rest, told[middle + 1..]);
    // Both go on with what comes now.
    let id = server.submit_one(&failing());
    for listener in [&mut listener, &mut again] {
        let next = listener.next().unwrap();
        assert_eq!((&*next.event, &next.data["rollout"]), ("queued", &json!(id)));
    }

    // What cannot be gone on with is said, once, and the feed goes on from now.
    server.ended(&id);
    server.end(Signal::SIGTERM).expect(0);
    assert_eq!(
        listener.by_ref().last().unwrap().event,
        "finished",
        "the stream was ended, not cut"
    );
    server.start_again();
    let last = told.last().unwrap();
    let mut late = Events::of(
        server
            .request("GET", FEED)
            .header("last-event-id", &last.id)
            .open(),
    );
    let kinds: Vec<_> = late.by_ref().take(2).map(|sent| sent.event).collect();
    assert_eq!(kinds, ["position", "missed"]);
    let id = server.submit_one(&failing());
    assert_eq!(late.next().unwrap().data["rollout"], id.as_str());
    for wrong in ["x", "7", "-", "a-b"] {
        let request = server.request("GET", FEED).header("last-event-id", wrong);
        request.send().expect_error(422, "invalid_request");
    }
}

#[test]
fn twenty_listeners_get_the_same() {
    let server = Server::plain();
    let mut feeds: Vec<_> = (0..20).map(|_| feed(&server, None)).collect();
    let id = server.submit_one(&failing());
    let listeners: Vec<_> = (0..20).map(|_| server.events(&id)).collect();
    let read: Vec<Vec<Sent>> = std::thread::scope(|scope| {
        let threads: Vec<_> = listeners
            .into_iter()
            .map(|events| scope.spawn(|| events.collect()))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    whole(&read[0], &id);
    assert!(read.iter().all(|events| *events == read[0]));
    let told: Vec<_> = feeds
        .iter_mut()
        .map(|feed| feed.until(|sent| sent.event == "finished"))
        .collect();
    assert!(
        told.iter()
            .all(|events| *events == told[0] && events.len() == read[0].len())
    );
}
