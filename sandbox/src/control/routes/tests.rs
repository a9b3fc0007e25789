use super::*;
use dressage_wire::control::{FailureKind, FoundFile};

fn answer(routes: &Routes, id: u64, body: Reply) -> Result<(), &'static str> {
    routes.answer(Frame { id, body })
}

fn read(limit: u64) -> (Routes, oneshot::Receiver<Result<Bytes, Failure>>) {
    let routes = Routes::default();
    let (done, is_done) = oneshot::channel();
    assert!(routes.open(
        1,
        Route::Read {
            limit,
            buffer: BytesMut::new(),
            done: Some(done)
        }
    ));
    (routes, is_done)
}

#[test]
fn answers_to_what_was_not_asked_are_ignored() {
    let (routes, mut is_done) = read(10);
    answer(&routes, 7, Reply::Content(Bytes::from_static(b"x"))).unwrap();
    answer(
        &routes,
        0,
        Reply::Exited(Exited {
            code: 0,
            signal: None,
            timed_out: false,
        }),
    )
    .unwrap();
    assert!(is_done.try_recv().is_err());
}

#[test]
fn more_than_was_asked_for_ends_the_connection() {
    let (routes, _is_done) = read(3);
    answer(&routes, 1, Reply::Content(Bytes::from_static(b"abc"))).unwrap();
    assert_eq!(
        answer(&routes, 1, Reply::Content(Bytes::from_static(b"d"))),
        Err(TOO_MUCH)
    );
    let routes = Routes::default();
    let (done, _is_done) = oneshot::channel();
    routes.open(
        2,
        Route::List {
            limit: 1,
            files: Vec::new(),
            done: Some(done),
        },
    );
    let file = FoundFile {
        path: "/x".into(),
        size_bytes: 1,
    };
    assert_eq!(
        answer(&routes, 2, Reply::Files(vec![file.clone(), file])),
        Err(TOO_MUCH)
    );
    let (done, _is_done) = oneshot::channel();
    let window = Arc::new(Semaphore::new(WRITE_WINDOW_CHUNKS));
    routes.open(
        3,
        Route::Write {
            window,
            done: Some(done),
        },
    );
    assert_eq!(answer(&routes, 3, Reply::Acknowledged), Err(TOO_MUCH));
}

#[test]
fn an_answer_of_another_kind_ends_the_connection() {
    let (routes, _is_done) = read(10);
    assert_eq!(answer(&routes, 1, Reply::Stdout(Bytes::new())), Err(OUT_OF_PLACE));
    let (routes, _is_done) = read(10);
    assert_eq!(answer(&routes, 1, Reply::Acknowledged), Err(OUT_OF_PLACE));
}

#[test]
fn nothing_is_answered_twice() {
    let (routes, mut is_done) = read(10);
    answer(&routes, 1, Reply::Done(Done::default())).unwrap();
    let failure = Failure {
        kind: FailureKind::Other,
        message: "late".into(),
        errno: None,
        size_bytes: 0,
    };
    answer(&routes, 1, Reply::Failed(failure)).unwrap();
    assert_eq!(is_done.try_recv().unwrap().unwrap(), Bytes::new());
}

#[test]
fn a_closed_connection_fails_what_is_open_and_what_comes_with_the_first_reason() {
    let (routes, mut is_done) = read(10);
    routes.close("the first");
    routes.close("the second");
    assert!(matches!(
        is_done.try_recv(),
        Err(oneshot::error::TryRecvError::Closed)
    ));
    let (done, _) = oneshot::channel();
    assert!(!routes.open(2, Route::Simple { done: Some(done) }));
    assert_eq!(routes.end_reason(), "the first");
    answer(&routes, 1, Reply::Done(Done::default())).unwrap();
}
