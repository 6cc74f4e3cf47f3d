//! Syncs at queue depth 1: made in place where others would not have it, and what that costs a second client.

use super::{Directory, RealDisk};
use crate::{
    Disk, OpenMode, QueueDepth, RequestSource,
    real::disk::{RealFile, pace::WhoWaits},
};
use bytes::Bytes;
use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

/// More requests than make a source count as alone.
const MANY: usize = 100;

/// Makes the disk believe that a sync takes a millisecond: too long if others might wait, not too long for one alone.
fn believe_in_between(disk: &RealDisk) {
    for _ in 0..200 {
        disk.paces.syncs.note(Duration::from_millis(1));
    }
    assert!(disk.paces.syncs.is_short(1, WhoWaits::One));
    assert!(!disk.paces.syncs.is_short(1, WhoWaits::Others));
}

fn alone(source: &RequestSource) {
    for _ in 0..MANY {
        drop(source.request());
    }
}

#[tokio::test]
async fn a_sync_that_is_not_quite_short_is_made_in_place_at_queue_depth_one() {
    let directory = Directory::new("depth-one");
    let depth = Arc::new(QueueDepth::default());
    let disk = RealDisk::open(&directory.0).unwrap().serving(&depth);
    let file = disk.open("file", OpenMode::CreateNew).await.unwrap();
    let source = depth.source();
    let is_in_place = async || {
        believe_in_between(&disk);
        let mut sync = file.write_and_sync(0, vec![Bytes::from_static(b"a record")]);
        let at_once = futures::poll!(&mut sync).is_ready();
        if !at_once {
            sync.await.unwrap();
        }
        at_once
    };
    assert!(!is_in_place().await, "for nobody who is known");
    alone(&source);
    assert!(!is_in_place().await, "no request waits");
    let request = source.request();
    assert!(is_in_place().await, "one request alone");
    let beside = source.request();
    assert!(!is_in_place().await, "two requests");
    drop((request, beside));
    let _request = source.request();
    assert!(!is_in_place().await, "there were two a moment ago");
}

/// How long a thread is held up.
const HELD: Duration = Duration::from_millis(400);

/// A server of bytes: answers each by the same; before that of 1 it makes a sync that takes [`HELD`].
struct Server {
    disk: RealDisk,
    file: RealFile,
    depth: Arc<QueueDepth>,
    /// Syncs that were made in place.
    in_place: AtomicUsize,
}

impl Server {
    async fn serve(self: Arc<Self>, listener: TcpListener) {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let server = self.clone();
            tokio::spawn(async move {
                let source = server.depth.source();
                let mut byte = [0];
                while stream.read_exact(&mut byte).await.is_ok() {
                    let request = source.request();
                    if byte == [1] {
                        server.sync().await;
                    }
                    stream.write_all(&byte).await.unwrap();
                    drop(request);
                }
            });
        }
    }

    async fn sync(&self) {
        let held = |_: &std::fs::File| {
            std::thread::sleep(HELD);
            Ok(())
        };
        believe_in_between(&self.disk);
        let who_waits = self.file.who_waits();
        let sync = self.file.paced_for(who_waits, |paces| &paces.syncs, 1, held);
        futures::pin_mut!(sync);
        match futures::poll!(&mut sync) {
            std::task::Poll::Ready(done) => {
                self.in_place.fetch_add(1, SeqCst);
                done.unwrap();
            }
            std::task::Poll::Pending => sync.await.unwrap(),
        }
    }
}

fn ask(stream: &mut TcpStream, byte: u8) {
    stream.write_all(&[byte]).unwrap();
    stream.read_exact(&mut [0]).unwrap();
}

#[test]
fn a_second_client_is_held_up_by_one_sync_and_by_none_after_it() {
    let directory = Directory::new("second-client");
    let depth = Arc::new(QueueDepth::default());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let disk = RealDisk::open(&directory.0).unwrap().serving(&depth);
    let file = RealFile::new(&disk, "file", tempfile(&directory));
    let server = Arc::new(Server {
        disk,
        file,
        depth,
        in_place: AtomicUsize::new(0),
    });
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    drop(runtime.spawn(server.clone().serve(listener)));
    let mut first = TcpStream::connect(address).unwrap();
    let mut second = TcpStream::connect(address).unwrap();
    ask(&mut second, 0);
    for _ in 0..MANY {
        ask(&mut first, 0);
    }
    let mut answered = Vec::new();
    for _ in 0..4 {
        first.write_all(&[1]).unwrap();
        std::thread::sleep(HELD / 8);
        let began = Instant::now();
        ask(&mut second, 0);
        answered.push(began.elapsed());
        first.read_exact(&mut [0]).unwrap();
    }
    assert_eq!(server.in_place.load(SeqCst), 1, "the second made itself known");
    assert!(answered[0] < HELD * 3 / 2, "answered after {answered:?}");
    assert!(
        answered[1..].iter().all(|took| *took < HELD / 2),
        "answered after {answered:?}"
    );
    // And once it has been silent for long enough, the first is alone again.
    for _ in 0..MANY {
        ask(&mut first, 0);
    }
    ask(&mut first, 1);
    assert_eq!(server.in_place.load(SeqCst), 2);
}

fn tempfile(directory: &Directory) -> std::fs::File {
    std::fs::File::create(directory.0.join("file")).unwrap()
}
