//! Bodies that are too many, too large, broken or slow.

use futures_util::StreamExt as _;

use super::*;

fn bodies() -> Bodies {
    Bodies::new(4096, Duration::from_secs(5), 8192)
}

async fn read(bodies: &Bodies, bytes: usize) -> Result<Bytes, Code> {
    bodies.read(&HeaderMap::new(), Body::from(vec![b'x'; bytes])).await.map_err(|failure| failure.code)
}

#[tokio::test]
async fn bodies_reserve_shared_memory_and_release_it() {
    let bodies = bodies();
    let first = read(&bodies, 4096).await.expect("it fits");
    let second = read(&bodies.at_most(9999), 4096).await.expect("it fits");
    assert_eq!(read(&bodies, 1).await, Err(Code::QueueFull));
    assert_eq!(read(&bodies, 0).await, Ok(Bytes::new()));
    let kept = first.slice(..10);
    drop(first);
    assert_eq!(read(&bodies, 1).await, Err(Code::QueueFull), "a part of it is still held");
    drop((kept, second));
    assert_eq!(read(&bodies, 4096).await.map(|bytes| bytes.len()), Ok(4096));
    assert_eq!(bodies.room.available_permits(), 8);
}

#[tokio::test]
async fn owner_takes_half_of_the_memory() {
    let bodies = Bodies::new(2048, Duration::from_secs(5), 8192);
    let by = async |owner: &str| counted_for(owner.parse().expect("an owner"), read(&bodies, 2048)).await;
    let (first, second) = (by("ann").await.expect("it fits"), by("ann").await.expect("it fits"));
    assert_eq!(by("ann").await, Err(Code::QueueFull), "half of all");
    let others = (by("bob").await.expect("it fits"), by("bob").await.expect("it fits"));
    drop((first, second));
    drop((by("ann").await.expect("it fits"), others));
    assert_eq!(bodies.room.available_permits(), 8);
    let single = Bodies::new(4096, Duration::from_secs(5), 4096);
    let largest = counted_for("ann".parse().expect("an owner"), read(&single, 4096)).await;
    assert!(largest.is_ok(), "the largest body fits in any case");
}

#[tokio::test]
async fn refused_bodies_reserve_no_memory() {
    let bodies = bodies();
    assert_eq!(read(&bodies, 4097).await, Err(Code::TooLarge));
    assert_eq!(read(&bodies.at_most(10), 11).await, Err(Code::TooLarge));
    let pieces = [Ok("some"), Err(std::io::Error::other("gone"))];
    let broken = bodies.read(&HeaderMap::new(), Body::from_stream(stream::iter(pieces))).await;
    assert_eq!(broken.map_err(|failure| failure.code), Err(Code::InvalidRequest));
    assert_eq!(bodies.room.available_permits(), 8);
}

#[tokio::test(start_paused = true)]
async fn slow_bodies_release_their_memory_when_it_is_short() {
    let bodies = Bodies::new(4096, Duration::from_mins(1), 8192);
    // All but the last piece at once, then a byte now and then.
    let slow = |bytes: usize| {
        let first = stream::once(async move { Ok::<_, std::io::Error>(vec![b'x'; bytes]) });
        let rest = stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Some((Ok(vec![b'x']), ()))
        });
        Body::from_stream(first.chain(rest))
    };
    let read = async |bytes| {
        let from = Instant::now();
        let read = bodies.read(&HeaderMap::new(), slow(bytes)).await;
        (read.map_err(|failure| failure.code), from.elapsed().as_secs())
    };
    assert_eq!(read(1000).await, (Err(Code::BodyTimeout), 60), "alone it has all the time");
    let (one, two) = tokio::join!(read(4000), read(3000));
    assert_eq!((one.0, two.0), (Err(Code::BodyTimeout), Err(Code::BodyTimeout)));
    assert_eq!((one.1.min(two.1), one.1.max(two.1)), (5, 60), "the first makes room for the other");
    let ann: Principal = "ann".parse().expect("an owner");
    let (one, two) = tokio::join!(counted_for(ann.clone(), read(1500)), counted_for(ann.clone(), read(1500)));
    assert_eq!((one.1.min(two.1), one.1.max(two.1)), (5, 60), "the memory of their owner is short");
    assert_eq!(bodies.room.available_permits(), 8);
}

#[tokio::test(start_paused = true)]
async fn a_long_body_may_be_slow_and_may_not_stand_still() {
    let bodies = Bodies::new(4096, Duration::from_mins(1), 8192);
    let slow = stream::iter(0..8).then(|_| async {
        tokio::time::sleep(Duration::from_secs(20)).await;
        Ok::<_, std::io::Error>(vec![b'x'; 2 << 20])
    });
    // Empty pieces are a pause too.
    let empty = stream::repeat_with(|| Ok(Vec::<u8>::new())).then(|piece| async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        piece
    });
    let body = Body::from_stream(slow.chain(empty));
    let headers = HeaderMap::new();
    let (announced, pieces) = bodies.stream(&headers, body).expect("a stream");
    let (mut pieces, mut received) = (std::pin::pin!(pieces), 0);
    let ended = loop {
        // Far less than the time that the bytes before it have gained.
        match timeout(Duration::from_secs(45), pieces.next()).await.expect("it is ended") {
            Some(Ok(piece)) => received += piece.len(),
            Some(Err(failure)) => break failure,
            None => panic!("it has no end"),
        }
    };
    assert_eq!((announced, received, ended.code), (None, 16 << 20, Code::BodyTimeout));
    assert!(ended.message.contains("pause"), "{ended}");
}

#[tokio::test]
async fn chunks_are_joined() {
    let pieces = ["one ", "", "two"].map(Ok::<_, std::io::Error>);
    let read = bodies().read(&HeaderMap::new(), Body::from_stream(stream::iter(pieces))).await;
    assert_eq!(read.expect("a body"), "one two");
}
