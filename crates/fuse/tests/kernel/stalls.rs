//! A kernel that cannot drop what it has cached, since it waits for an answer itself; and processes that are stopped. Whoever changes files by another
//! protocol waits for them once, a second, and not for ever.

use crate::world::{World, name, root, shell, world, world_over};
use async_trait::async_trait;
use firn_vfs::{
    Caller, CreateMode, Created, FileHandle, MemoryVfs, Name, ReadReply, SetAttributes, Vfs, VfsError,
};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::FileExt,
    process::{Child, Command, Stdio},
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};
use tokio::sync::watch;

/// Changes by the other protocol, each of which would wait a second if each waited.
const CHANGES: u64 = 60;
/// What they may take together, on however slow a machine: less than half of that.
const WITHIN: Duration = Duration::from_secs(CHANGES / 3);

/// What is made with this name, and what is read at this place, is answered once it may be.
const HELD: &str = "held";
const HELD_FROM: u64 = 1 << 20;

/// The model, which holds some answers back.
struct Holding {
    below: Arc<MemoryVfs>,
    may_answer: watch::Receiver<bool>,
    /// Answers that are held back.
    held: Arc<watch::Sender<u64>>,
}

impl Holding {
    async fn hold(&self) {
        self.held.send_modify(|held| *held += 1);
        let mut may_answer = self.may_answer.clone();
        may_answer.wait_for(|may| *may).await.expect("the test lives");
    }
}

#[async_trait]
impl firn_vfs::VfsLayer for Holding {
    fn below(&self) -> &dyn Vfs {
        &*self.below
    }

    async fn create(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
        mode: CreateMode,
    ) -> Result<Created, VfsError> {
        if name.as_bytes() == HELD.as_bytes() {
            self.hold().await;
        }
        self.below.create(caller, directory, name, mode).await
    }

    async fn read(
        &self,
        caller: &Caller,
        file: FileHandle,
        offset: u64,
        length: u32,
    ) -> Result<ReadReply, VfsError> {
        if offset >= HELD_FROM {
            self.hold().await;
        }
        self.below.read(caller, file, offset, length).await
    }
}

/// A mount over such a model.
struct Held {
    world: World,
    let_answer: watch::Sender<bool>,
    held: watch::Receiver<u64>,
}

impl Held {
    fn new() -> Option<Self> {
        let (let_answer, may_answer) = watch::channel(false);
        let (send, held) = watch::channel(0);
        let send = Arc::new(send);
        let world = world_over(false, |below| {
            Arc::new(Holding {
                below,
                may_answer,
                held: send,
            })
        })?;
        Some(Self {
            world,
            let_answer,
            held,
        })
    }

    /// A process's call of which the answer is held back, as it is now.
    fn call<T: Send + 'static>(&mut self, call: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        self.held.mark_unchanged();
        let calling = std::thread::spawn(call);
        self.world
            .runtime
            .block_on(self.held.changed())
            .expect("it is asked");
        calling
    }

    /// Has the other protocol change what the kernel cannot drop, and then others of its files: all together wait once.
    fn changes_wait_once(&self, change: impl Fn(u64)) {
        let began = Instant::now();
        for number in 0..CHANGES {
            change(number);
        }
        let (took, counts) = (began.elapsed(), self.counts());
        assert!(took < WITHIN, "{took:?}, {counts:?}");
        assert!(counts.stalled && counts.late == 1, "it did wait: {counts:?}");
    }

    fn counts(&self) -> firn_session::WatchCounts {
        self.world.mount.as_ref().expect("mounted").status().invalidations
    }

    fn is_coherent_again(&self) {
        let began = Instant::now();
        while self.counts().stalled {
            assert!(began.elapsed() < Duration::from_secs(60), "{:?}", self.counts());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn a_directory_that_the_kernel_keeps_locked_delays_other_protocols_once() {
    let Some(mut held) = Held::new() else { return };
    fs::create_dir(held.world.path("d")).expect("made");
    for number in 0..CHANGES {
        fs::write(held.world.path(&format!("d/{number}")), b"old").expect("written");
    }
    fs::write(held.world.path("elsewhere"), b"old").expect("written");
    let (directory, elsewhere) = (held.world.find("d"), held.world.find("elsewhere"));
    let path = held.world.path(&format!("d/{HELD}"));
    let making = held.call(move || fs::write(path, b"made").expect("written"));
    held.changes_wait_once(|number| {
        let world = &held.world;
        let name = name(&number.to_string());
        let removed = world.other.remove(root(), directory, &name);
        world.runtime.block_on(removed).expect("removed");
        world.write(elsewhere, b"new");
    });
    // The mount itself is served, but for what waits.
    assert!(fs::read(held.world.path("elsewhere")).is_ok());
    held.let_answer.send_replace(true);
    making.join().expect("it ends");
    held.is_coherent_again();
    for number in 0..CHANGES {
        assert!(!held.world.path(&format!("d/{number}")).exists(), "{number}");
    }
    assert_eq!(fs::read(held.world.path("elsewhere")).expect("read"), b"new");
    assert_eq!(
        fs::read(held.world.path(&format!("d/{HELD}"))).expect("read"),
        b"made"
    );
}

#[test]
fn a_page_that_the_kernel_waits_for_delays_other_protocols_once() {
    let Some(mut held) = Held::new() else { return };
    let path = held.world.path("file");
    let file = fs::File::create(&path).expect("made");
    file.set_len(2 * HELD_FROM).expect("long");
    fs::write(held.world.path("elsewhere"), b"old").expect("written");
    let (handle, elsewhere) = (held.world.find("file"), held.world.find("elsewhere"));
    let reading = held.call(move || {
        let mut data = [0; 3];
        let open = fs::File::open(path).expect("open");
        open.read_exact_at(&mut data, HELD_FROM).expect("read");
        data
    });
    held.changes_wait_once(|_| {
        held.world.write(handle, b"new");
        held.world.write(elsewhere, b"new");
    });
    held.let_answer.send_replace(true);
    assert_eq!(reading.join().expect("it ends"), [0; 3]);
    held.is_coherent_again();
    for name in ["file", "elsewhere"] {
        let open = fs::File::open(held.world.path(name)).expect("open");
        let mut data = [0; 3];
        open.read_exact_at(&mut data, 0).expect("read");
        assert_eq!(&data, b"new", "{name}");
    }
}

/// A process that is stopped, whatever becomes of the test.
struct Stopped(Child);

impl Stopped {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("a signal");
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Has a file open and mapped, a page of it changed, its directory listed, and stands in it; then it says so and reads on and on.
const HOLDER: &str = r"
import mmap, os, sys
os.chdir(sys.argv[1])
f = open('file', 'r+b')
m = mmap.mmap(f.fileno(), 0)
m[8192:8197] = b'dirty'
os.listdir('.')
print('holds', flush=True)
while True:
    m[0]; os.pread(f.fileno(), 3, 0); os.stat('file')
";

#[test]
fn a_stopped_process_delays_nobody_whatever_it_holds() {
    let Some(world) = world() else { return };
    fs::create_dir(world.path("d")).expect("made");
    fs::write(world.path("d/file"), vec![b'.'; 64 << 10]).expect("written");
    let (directory, file) = (world.find("d"), world.find("d/file"));
    let child = Command::new("python3")
        .args(["-c", HOLDER])
        .arg(world.path("d"))
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3");
    let mut holder = Stopped(child);
    let mut said = String::new();
    let output = holder.0.stdout.take().expect("piped");
    BufReader::new(output).read_line(&mut said).expect("it says so");
    assert_eq!(said, "holds\n");
    holder.signal(Signal::STOP);
    let id = holder.0.id();
    let began = Instant::now();
    while !shell(&format!("cat /proc/{id}/stat")).contains(") T ") {
        assert!(began.elapsed() < Duration::from_secs(60), "it is never stopped");
        std::thread::sleep(Duration::from_millis(10));
    }
    let began = Instant::now();
    for number in 0..CHANGES {
        world.write(file, b"new");
        let made = name(&number.to_string());
        let created = world.other.create(
            root(),
            directory,
            &made,
            CreateMode::Guarded(SetAttributes::default()),
        );
        world.runtime.block_on(created).expect("created");
    }
    let counts = world.mount.as_ref().expect("mounted").status().invalidations;
    assert!(
        began.elapsed() < WITHIN && counts.late == 0,
        "{:?}, {counts:?}",
        began.elapsed()
    );
    assert_eq!(
        fs::read_dir(world.path("d")).expect("listed").count() as u64,
        CHANGES + 1
    );
    // What it had changed in its memory is there too, beside what came meanwhile.
    let data = fs::read(world.path("d/file")).expect("read");
    assert_eq!((&data[..3], &data[8192..8197]), (&b"new"[..], &b"dirty"[..]));
    holder.signal(Signal::CONT);
}
