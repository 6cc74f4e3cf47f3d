//! The log over the model of a file system, in virtual time: what its lines say, and what it does when its disk does not take them.

use crate::{AccessLog, AccessLogOptions, Paths, Protocol, RecordedVfs, Recorder, UserNames, Who};
use async_trait::async_trait;
use bytes::Bytes;
use firn_env::{
    Disk, Env, OpenMode,
    mutants::planting,
    sim::{Machine, Simulation},
};
use firn_vfs::{
    AccessMask, Caller, CreateMode, Credentials, FileHandle, MemoryOptions, MemoryVfs, Name, SetAttributes,
    Stability, Vfs,
};
use futures::FutureExt;
use serde_json::Value;
use std::{sync::Arc, time::Duration};

struct Users;

impl UserNames for Users {
    fn name_of(&self, uid: u32) -> Option<String> {
        (uid == 1001).then(|| "alice".into())
    }
}

struct World {
    env: Env,
    log: AccessLog,
    vfs: Arc<dyn Vfs>,
    recorder: Recorder,
}

impl World {
    fn start(env: &Env, file_bytes_max: u64, files_max: u32) -> Self {
        let options = AccessLogOptions {
            disk: env.disk().clone(),
            file_bytes_max,
            files_max,
            syslog: None,
            version: "1".into(),
        };
        let log = AccessLog::start(env, options, Arc::new(Users));
        let options = MemoryOptions {
            root_mode: 0o777,
            ..MemoryOptions::default()
        };
        Self {
            env: env.clone(),
            recorder: log.recorder("main", Some("/export")),
            vfs: Arc::new(MemoryVfs::new(env, options)),
            log,
        }
    }

    fn of(&self, uid: u32) -> (RecordedVfs, Caller) {
        self.through(&self.recorder, uid)
    }

    fn through(&self, recorder: &Recorder, uid: u32) -> (RecordedVfs, Caller) {
        let who = Who {
            protocol: Protocol::Nfs,
            address: Some([10, 0, 0, 7].into()),
            uid: Some(uid),
            effective_uid: Some(uid),
        };
        let credentials = Credentials {
            uid,
            gid: uid,
            groups: Vec::new(),
        };
        let caller = Caller::new(credentials);
        (recorder.view(self.vfs.clone(), who), caller)
    }

    async fn make(&self, name: &str) -> FileHandle {
        let (vfs, caller) = self.of(1001);
        let mode = SetAttributes {
            mode: Some(0o600),
            ..SetAttributes::default()
        };
        let name = named(name);
        let made = vfs.create(&caller, vfs.root(), &name, CreateMode::Guarded(mode));
        made.await.expect("made").handle
    }

    async fn write(&self, file: FileHandle, bytes: usize) {
        let (vfs, caller) = self.of(1001);
        let data = vec![Bytes::from(vec![1; bytes])];
        let written = vfs.write(&caller, file, 0, data, Stability::Unstable);
        written.await.expect("written");
    }
}

fn named(name: &str) -> Name {
    Name::new(name.as_bytes().to_vec()).expect("a name")
}

async fn read(disk: &dyn Disk, name: &str) -> Vec<u8> {
    let Ok(file) = disk.open(name, OpenMode::Read).await else {
        return Vec::new();
    };
    let length = file.length().await.expect("a length");
    let bytes = file.read_at(0, length as usize).await;
    bytes.expect("the bytes").to_vec()
}

fn parsed(bytes: &[u8]) -> Vec<Value> {
    let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines
        .map(|line| serde_json::from_slice(line).unwrap_or_else(|error| panic!("{error}: {line:?}")))
        .collect()
}

async fn lines(env: &Env) -> Vec<Value> {
    parsed(&read(&**env.disk(), "access.log").await)
}

fn texts(lines: &[Value], key: &str) -> Vec<String> {
    let text = |line: &Value| line[key].as_str().unwrap_or("-").to_owned();
    lines.iter().map(text).collect()
}

/// Runs `story` on a machine of its own.
fn on_a_machine<F: Future<Output = ()> + Send + 'static>(
    seed: u64,
    story: impl FnOnce(Env, Machine) -> F,
) -> Simulation {
    let simulation = Simulation::new(seed);
    let machine = simulation.machine("edge");
    let story = story(machine.env(), machine.clone());
    let task = machine.env().spawn("story", story);
    simulation.run(task).expect("it ends").expect("it does not panic");
    simulation
}

#[test]
fn a_line_says_who_did_what_with_which_file_from_where_and_how_it_ended() {
    on_a_machine(1, |env, _| async move {
        let world = World::start(&env, 1 << 20, 3);
        let file = world.make("plan").await;
        for _ in 0..10 {
            world.write(file, 1000).await;
        }
        let (bob, as_bob) = world.of(1002);
        bob.read(&as_bob, file, 0, 10).await.expect_err("not his");
        let asked = AccessMask {
            read: true,
            modify: true,
            ..AccessMask::default()
        };
        let (granted, _) = bob.check_access(&as_bob, file, asked).await.expect("asked");
        assert_eq!(granted, AccessMask::default());
        let (alice, as_alice) = world.of(1001);
        let (root, to) = (alice.root(), named("old plan"));
        alice
            .rename(&as_alice, root, &named("plan"), root, &to)
            .await
            .expect("renamed");
        let set = SetAttributes {
            mode: Some(0o644),
            size_bytes: Some(7),
            ..SetAttributes::default()
        };
        alice
            .set_attributes(&as_alice, file, set, None)
            .await
            .expect("set");
        alice.remove(&as_alice, root, &to).await.expect("removed");
        alice.remove(&as_alice, root, &to).await.expect_err("gone");
        world.log.end().await;

        let lines = lines(&env).await;
        let wanted = [
            ("start", "-", "-"),
            ("create", "/plan", "ok"),
            ("read", "/plan", "EACCES"),
            ("access", "/plan", "EACCES"),
            ("rename", "/plan", "ok"),
            ("setattr", "/old plan", "ok"),
            ("remove", "/old plan", "ok"),
            ("remove", "/old plan", "ENOENT"),
            ("write", "/plan", "ok"),
            ("end", "-", "-"),
        ];
        let (events, paths, results) = (
            texts(&lines, "event"),
            texts(&lines, "path"),
            texts(&lines, "result"),
        );
        let seen: Vec<_> = (0..lines.len())
            .map(|at| (&*events[at], &*paths[at], &*results[at]))
            .collect();
        assert_eq!(seen, wanted);
        let created = &lines[1];
        assert_eq!(
            (
                &created["client"],
                &created["uid"],
                &created["user"],
                &created["protocol"]
            ),
            (&"10.0.0.7".into(), &1001.into(), &"alice".into(), &"nfs".into())
        );
        assert_eq!(
            (&created["volume"], &created["export"]),
            (&"main".into(), &"/export".into())
        );
        assert_eq!(created["inode"], file.inode);
        let time: jiff::Timestamp = created["time"]
            .as_str()
            .expect("a time")
            .parse()
            .expect("RFC 3339");
        assert_eq!(time.as_second(), env.wall().0 / 1_000_000_000);
        assert_eq!(lines[2]["user"], Value::Null, "a number without a name");
        assert_eq!(lines[4]["to"], "/old plan");
        assert_eq!(lines[5]["set"], serde_json::json!({"mode": "0644", "size": 7}));
        assert_eq!(
            (&lines[8]["calls"], &lines[8]["bytes"]),
            (&10.into(), &10_000.into())
        );
        let status = world.log.status();
        assert_eq!((status.lines, status.lost, status.failing), (10, 0, None));
    });
}

#[test]
fn reads_of_one_client_are_one_line_and_end_when_the_client_does_or_a_minute_is_over() {
    on_a_machine(2, |env, _| async move {
        let world = World::start(&env, 1 << 20, 3);
        let file = world.make("film").await;
        let (alice, as_alice) = world.of(1001);
        for _ in 0..100 {
            alice.read(&as_alice, file, 0, 10).await.expect("read");
            env.sleep(Duration::from_secs(1)).await;
        }
        env.sleep(Duration::from_secs(10)).await;
        let seen = lines(&env).await;
        let reads: Vec<_> = seen.iter().filter(|line| line["event"] == "read").collect();
        let calls: u64 = reads.iter().filter_map(|line| line["calls"].as_u64()).sum();
        assert_eq!((reads.len(), calls), (2, 100), "{seen:?}");
        assert_eq!(world.log.status().summaries, 0);
        world.log.end().await;
    });
}

#[test]
fn a_full_disk_holds_no_client_up_and_what_is_lost_is_counted_in_its_place() {
    on_a_machine(3, |env, machine| async move {
        machine
            .disk()
            .configure(|options| options.capacity_bytes = 64 << 10);
        let world = World::start(&env, 1 << 24, 2);
        let (alice, as_alice) = world.of(1001);
        let name = named("nothing");
        let began = env.now();
        for _ in 0..40_000 {
            alice
                .remove(&as_alice, alice.root(), &name)
                .await
                .expect_err("nothing there");
            if env.now().since(began) < Duration::from_secs(3) {
                env.sleep(Duration::from_millis(1)).await;
            }
        }
        let status = world.log.status();
        assert!(status.lost > 0 && status.failing.is_some(), "{status:?}");
        assert!(status.failing.expect("a reason").contains("full"));
        machine
            .disk()
            .configure(|options| options.capacity_bytes = 64 << 20);
        env.sleep(Duration::from_secs(10)).await;
        alice
            .remove(&as_alice, alice.root(), &name)
            .await
            .expect_err("nothing there");
        world.log.end().await;
        let mut all = parsed(&read(&**env.disk(), "access.log.1").await);
        all.extend(lines(&env).await);
        let lost: Vec<_> = all.iter().filter(|line| line["event"] == "lost").collect();
        assert_eq!(lost.len(), 1);
        let removals = all.iter().filter(|line| line["event"] == "remove").count() as u64;
        // Files that had to go are not counted: two are kept, and all of it fits.
        assert_eq!(removals + lost[0]["count"].as_u64().expect("a count"), 40_001);
        assert_eq!(all.last().expect("lines")["event"], "end");
        assert_eq!(all[all.len() - 2]["event"], "remove", "behind the loss");
        assert_eq!(world.log.status().failing, None);
    });
}

#[test]
fn files_are_bounded_in_length_and_number_and_no_line_is_cut() {
    on_a_machine(4, |env, _| async move {
        let world = World::start(&env, 16 << 10, 3);
        for number in 0..400 {
            world.make(&format!("file {number}")).await;
            env.sleep(Duration::from_millis(50)).await;
        }
        world.log.end().await;
        let mut all = Vec::new();
        for name in ["access.log.2", "access.log.1", "access.log"] {
            let bytes = read(&**env.disk(), name).await;
            assert!(
                !bytes.is_empty() && bytes.len() <= 16 << 10,
                "{name}: {}",
                bytes.len()
            );
            all.extend(parsed(&bytes));
        }
        let names: Vec<_> = texts(&all, "path")
            .into_iter()
            .filter(|path| path != "-")
            .collect();
        let first = 400 - names.len();
        let wanted: Vec<_> = (first..400).map(|number| format!("/file {number}")).collect();
        assert_eq!(names, wanted, "the newest, in order, without a gap");
        assert_eq!(env.disk().list("").await.expect("a listing").len(), 3);
    });
}

#[test]
fn a_start_says_how_the_log_was_left_and_goes_on_behind_the_last_whole_line() {
    let simulation = Simulation::new(5);
    let machine = simulation.machine("edge");
    let story = |env: Env, name: &'static str, ends: bool| async move {
        let world = World::start(&env, 1 << 20, 2);
        world.make(name).await;
        env.sleep(Duration::from_secs(20)).await;
        if ends {
            world.log.end().await;
        }
    };
    let env = machine.env();
    let task = env.spawn("first", story(env.clone(), "first", true));
    simulation.run(task).expect("it ends").expect("no panic");
    machine.kill();
    let env = machine.restart();
    let task = env.spawn("second", story(env.clone(), "second", false));
    simulation.run(task).expect("it ends").expect("no panic");
    machine.crash();
    let env = machine.restart();
    let disk = env.disk().clone();
    let cut = async move {
        let file = disk
            .open("access.log", OpenMode::ReadWrite)
            .await
            .expect("the log");
        let length = file.length().await.expect("its length");
        file.write_at(length, vec!["{\"half\":".into()])
            .await
            .expect("half a line");
    };
    simulation.run(cut).expect("it ends");
    let task = env.spawn("third", story(env.clone(), "third", true));
    simulation.run(task).expect("it ends").expect("no panic");
    let seen = simulation.run(async move { lines(&env).await }).expect("it ends");
    let starts: Vec<_> = seen.iter().filter(|line| line["event"] == "start").collect();
    let left: Vec<_> = starts.iter().map(|line| line["previous"].clone()).collect();
    assert_eq!(left, ["none", "ended", "cut off"]);
    let paths: Vec<_> = texts(&seen, "path")
        .into_iter()
        .filter(|path| path != "-")
        .collect();
    assert_eq!(paths, ["/first", "/second", "/third"]);
}

#[test]
fn a_log_that_somebody_moves_away_is_begun_anew() {
    on_a_machine(6, |env, _| async move {
        let world = World::start(&env, 1 << 20, 3);
        world.make("before").await;
        env.sleep(Duration::from_secs(2)).await;
        env.disk().rename("access.log", "rotated").await.expect("moved");
        world.make("after").await;
        env.sleep(Duration::from_secs(2)).await;
        let seen = lines(&env).await;
        assert_eq!(texts(&seen, "event"), ["start", "create"]);
        assert_eq!(seen[0]["previous"], "moved away");
        assert_eq!(parsed(&read(&**env.disk(), "rotated").await).len(), 2);
        world.log.end().await;
    });
}

struct Engine;

#[async_trait]
impl Paths for Engine {
    async fn path_of(&self, file: FileHandle) -> Option<String> {
        (file.inode == 77).then(|| "/deep/down".into())
    }
}

#[test]
fn the_engine_is_asked_for_what_no_client_looked_up_and_a_file_without_a_name_is_a_number() {
    on_a_machine(7, |env, _| async move {
        let world = World::start(&env, 1 << 20, 3);
        let (alice, as_alice) = world.of(1001);
        let known = FileHandle {
            inode: 77,
            ..alice.root()
        };
        let unknown = FileHandle {
            inode: 78,
            ..alice.root()
        };
        let resolving = world.log.resolve_by("main", Arc::new(Engine));
        for file in [known, unknown] {
            alice.read(&as_alice, file, 0, 1).await.expect_err("no such file");
        }
        alice
            .remove(&as_alice, known, &named("x"))
            .await
            .expect_err("no such directory");
        env.sleep(Duration::from_secs(2)).await;
        drop(resolving);
        alice
            .read(&as_alice, known, 0, 1)
            .await
            .expect_err("no such file");
        world.log.end().await;
        let paths: Vec<_> = texts(&lines(&env).await, "path");
        assert_eq!(paths, ["-", "/deep/down", "#78", "/deep/down/x", "#77", "-"]);
    });
}

#[test]
fn what_is_being_summed_up_when_a_volume_closes_still_gets_its_path() {
    on_a_machine(10, |env, _| async move {
        let world = World::start(&env, 1 << 20, 3);
        let (_, as_alice) = world.of(1001);
        // Made beside the log: no name is known.
        let (root, name) = (world.vfs.root(), named("x"));
        let mode = CreateMode::Guarded(SetAttributes::default());
        let file = world
            .vfs
            .create(&as_alice, root, &name, mode)
            .await
            .expect("made")
            .handle;
        let resolving = world.log.resolve_by("main", Arc::new(Everywhere));
        world.write(file, 10).await;
        world.log.flush().await;
        drop(resolving);
        world.log.end().await;
        let lines = lines(&env).await;
        assert_eq!(texts(&lines, "path"), ["-", "/somewhere", "-"]);
    });
}

struct Everywhere;

#[async_trait]
impl Paths for Everywhere {
    async fn path_of(&self, _: FileHandle) -> Option<String> {
        Some("/somewhere".into())
    }
}

/// A client that goes away in the middle of a removal: what the log says of it.
fn of_a_dropped_call(bug: Option<&'static str>) -> Vec<String> {
    planting(bug, || {
        let simulation = Simulation::new(8);
        let machine = simulation.machine("edge");
        let env = machine.env();
        let story = env.clone().spawn("story", {
            let env = env.clone();
            async move {
                let world = World::start(&env, 1 << 20, 3);
                let slow: Arc<dyn Vfs> = Arc::new(Slow(world.vfs.clone(), env.clone()));
                let (_, caller) = world.of(1001);
                let who = Who {
                    protocol: Protocol::Nfs,
                    address: None,
                    uid: None,
                    effective_uid: None,
                };
                let vfs = world.recorder.view(slow, who);
                let name = named("x");
                let mut call = Box::pin(vfs.remove(&caller, vfs.root(), &name));
                assert!((&mut call).now_or_never().is_none());
                drop(call);
                world.log.end().await;
                let lines = lines(&env).await;
                texts(&lines, "result")
            }
        });
        simulation.run(story).expect("it ends").expect("no panic")
    })
}

struct Slow(Arc<dyn Vfs>, Env);

#[async_trait]
impl firn_vfs::VfsLayer for Slow {
    fn below(&self) -> &dyn Vfs {
        &*self.0
    }

    async fn remove(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
    ) -> Result<firn_vfs::Removed, firn_vfs::VfsError> {
        self.1.sleep(Duration::from_secs(1)).await;
        self.0.remove(caller, directory, name).await
    }
}

#[test]
fn a_change_whose_client_went_away_is_logged_as_unknown() {
    assert_eq!(of_a_dropped_call(None), ["-", "unknown", "-"]);
    assert_eq!(
        of_a_dropped_call(Some("accesslog.dropped_call_is_silent")),
        ["-", "-"]
    );
}

/// The path of a file after its directory was renamed through an export that is not logged.
fn after_a_rename(bug: Option<&'static str>) -> String {
    planting(bug, || {
        let simulation = Simulation::new(9);
        let env = simulation.machine("edge").env();
        let story = env.clone().spawn("story", {
            let env = env.clone();
            async move {
                let world = World::start(&env, 1 << 20, 3);
                let (alice, as_alice) = world.of(1001);
                let root = alice.root();
                let mode = SetAttributes {
                    mode: Some(0o700),
                    ..SetAttributes::default()
                };
                let (old, inside) = (named("old"), named("file"));
                let made = alice.make_directory(&as_alice, root, &old, mode.clone());
                let directory = made.await.expect("made").handle;
                let made = alice.create(&as_alice, directory, &inside, CreateMode::Guarded(mode));
                let file = made.await.expect("made").handle;
                let (other, _) = world.through(&world.log.follower("main"), 1001);
                other
                    .rename(&as_alice, root, &named("old"), root, &named("new"))
                    .await
                    .expect("renamed");
                world.write(file, 1).await;
                world.log.end().await;
                let lines = lines(&world.env).await;
                let written = lines
                    .iter()
                    .find(|line| line["event"] == "write")
                    .expect("a write");
                assert!(!texts(&lines, "event").contains(&"rename".into()), "not logged");
                written["path"].as_str().expect("a path").to_owned()
            }
        });
        simulation.run(story).expect("it ends").expect("no panic")
    })
}

#[test]
fn paths_are_right_after_renames_by_clients_that_are_not_logged() {
    assert_eq!(after_a_rename(None), "/new/file");
    assert_eq!(
        after_a_rename(Some("accesslog.renames_are_not_followed")),
        "/old/file"
    );
}
