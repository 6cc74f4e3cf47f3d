//! Histories on a simulated network that loses connections, with a server that is killed and restarted: each change
//! happens exactly once, and its caller is told so, however often it had to ask.

use crate::served::{KEY, guarded, mode, open_rule};
use async_trait::async_trait;
use bytes::Bytes;
use firn_env::{
    Env,
    sim::{Machine, Seeded, Simulation},
};
use firn_nfs::{
    Export, Exports, HandleKey, WireHandle,
    client::{NfsClient, entry},
    rpc::{Credential, Program, Programs, Refusal, Reply, Request, Server, ServerLimits},
    v3::{
        NfsProgram, Procedure, Status,
        types::{CreateCall, MakeDirectoryCall, RenameCall},
    },
    xdr::{Decode, Decoder, Encode, Encoder},
};
use firn_vfs::{MemoryOptions, MemoryVfs, Vfs};
use std::{collections::BTreeSet, ops::RangeInclusive, sync::Arc, time::Duration};

const OPERATIONS: u32 = 40;
const SEEDS: u64 = 60;
/// How long a call may take until its reply is sent, so that connections are lost in between.
const REPLY_DELAY_MS: u64 = 40;

/// NFS with replies that take their time.
struct Slow {
    env: Env,
    nfs: NfsProgram,
}

#[async_trait]
impl Program for Slow {
    fn number(&self) -> u32 {
        self.nfs.number()
    }

    fn name(&self) -> &'static str {
        self.nfs.name()
    }

    fn versions(&self) -> RangeInclusive<u32> {
        self.nfs.versions()
    }

    fn procedure_name(&self, version: u32, procedure: u32) -> Option<&'static str> {
        self.nfs.procedure_name(version, procedure)
    }

    async fn call(&self, request: Request) -> Result<Reply, Refusal> {
        let delay = |env: &Env| Duration::from_millis(env.random_below(REPLY_DELAY_MS));
        self.env.sleep(delay(&self.env)).await;
        let reply = self.nfs.call(request).await;
        self.env.sleep(delay(&self.env)).await;
        reply
    }
}

fn exports(vfs: &Arc<MemoryVfs>) -> Arc<Exports> {
    let export = Export::new("/", vfs.clone() as Arc<dyn Vfs>, vec![open_rule()]).unwrap();
    Arc::new(Exports::new(HandleKey::new(&KEY), [export]).unwrap())
}

async fn serve(env: &Env, vfs: &Arc<MemoryVfs>) {
    let nfs = Slow {
        env: env.clone(),
        nfs: NfsProgram::new(env, exports(vfs), 1 << 20),
    };
    let programs = Arc::new(Programs::new([Arc::new(nfs) as Arc<dyn Program>]));
    let server = Server::new(env, ServerLimits::default());
    server.listen("0.0.0.0:2049", programs).await.unwrap();
}

/// Sends a call again and again until it is answered, as a hard mount does.
async fn insist(env: &Env, transaction: u32, procedure: Procedure, call: &impl Encode) -> Bytes {
    for _ in 0..1000 {
        let credential = Credential::sys("client", 0, 0, vec![]);
        let connected = NfsClient::connect(env, "server:2049", credential, Duration::from_secs(5)).await;
        if let Ok(client) = connected
            && let Ok(reply) = client.call_as(transaction, procedure, call).await
        {
            return reply;
        }
        env.sleep(Duration::from_millis(5)).await;
    }
    panic!("never answered");
}

/// What a client does, and the names that must exist afterwards.
async fn history(env: Env, mut random: Seeded, root: WireHandle) -> BTreeSet<String> {
    let mut names: BTreeSet<String> = BTreeSet::new();
    for number in 0..OPERATIONS {
        let some = names.iter().nth(random.index(names.len().max(1))).cloned();
        let fresh = format!("name-{number}");
        let send = async |procedure, call: Encoder| {
            struct Raw(Bytes);
            impl Encode for Raw {
                fn encode(&self, out: &mut Encoder) {
                    out.raw(self.0.clone());
                }
            }
            let reply = insist(&env, number, procedure, &Raw(call.into_bytes())).await;
            let status = Status::decode(&mut Decoder::new(reply)).unwrap();
            assert_eq!(status, Status::Ok, "{procedure:?} number {number}");
        };
        let encoded = |call: &dyn Fn(&mut Encoder)| {
            let mut out = Encoder::new();
            call(&mut out);
            out
        };
        match (random.below(4), some) {
            (0, Some(name)) => {
                let procedure = if name.starts_with('d') {
                    Procedure::RemoveDirectory
                } else {
                    Procedure::Remove
                };
                send(procedure, encoded(&|out| entry(&root, &name).encode(out))).await;
                names.remove(&name);
            }
            (1, Some(name)) => {
                let to = format!("{}{number}", &name[..1]);
                let call = RenameCall {
                    from: entry(&root, &name),
                    to: entry(&root, &to),
                };
                send(Procedure::Rename, encoded(&|out| call.encode(out))).await;
                names.remove(&name);
                names.insert(to);
            }
            (2, _) => {
                let at = entry(&root, format!("d{fresh}"));
                let attributes = mode(0o700);
                let call = MakeDirectoryCall { at, attributes };
                send(Procedure::MakeDirectory, encoded(&|out| call.encode(out))).await;
                names.insert(format!("d{fresh}"));
            }
            _ => {
                let at = entry(&root, format!("f{fresh}"));
                let how = guarded(0o600);
                let call = CreateCall { at, how };
                send(Procedure::Create, encoded(&|out| call.encode(out))).await;
                names.insert(format!("f{fresh}"));
            }
        }
    }
    names
}

/// Loses connections and kills the server at random, `times` in all.
async fn disturb(
    env: Env,
    mut random: Seeded,
    simulation: Arc<Simulation>,
    server: Machine,
    vfs: Arc<MemoryVfs>,
) {
    for _ in 0..60 {
        env.sleep(random.duration(Duration::from_millis(1), Duration::from_millis(120)))
            .await;
        if random.chance(1, 4) {
            server.kill();
            vfs.crash(|_, _| 0);
            env.sleep(random.duration(Duration::ZERO, Duration::from_millis(50)))
                .await;
            serve(&server.restart(), &vfs).await;
        } else {
            simulation.reset_connections(&server);
        }
    }
}

/// Runs one seed; returns the hash of every step.
fn run(seed: u64) -> u64 {
    let simulation = Arc::new(Simulation::new(seed));
    let (server, client) = (simulation.machine("server"), simulation.machine("client"));
    let env = simulation.env();
    let options = MemoryOptions {
        root_mode: 0o777,
        ..MemoryOptions::default()
    };
    let vfs = Arc::new(MemoryVfs::new(&env, options));
    let exports = exports(&vfs);
    let root = exports.sign(exports.iter().next().unwrap(), vfs.root());
    let disturbing = disturb(
        env.clone(),
        Seeded::new(seed, 2),
        simulation.clone(),
        server.clone(),
        vfs.clone(),
    );
    let acting = history(client.env(), Seeded::new(seed, 1), root);
    let world = {
        let vfs = vfs.clone();
        async move {
            serve(&server.env(), &vfs).await;
            futures::future::join(acting, disturbing).await.0
        }
    };
    let expected = simulation
        .run(world)
        .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    let listing = simulation.run(async move {
        let caller = firn_vfs::Caller::new(firn_vfs::Credentials::root());
        vfs.read_directory(&caller, vfs.root(), 0, 1000, false)
            .await
            .unwrap()
    });
    let names: BTreeSet<String> = listing
        .unwrap()
        .entries
        .into_iter()
        .map(|entry| String::from_utf8(entry.name.to_vec()).unwrap())
        .filter(|name| !name.starts_with('.'))
        .collect();
    assert_eq!(names, expected, "seed {seed}");
    simulation.trace_hash()
}

#[test]
fn every_change_happens_exactly_once_through_lost_connections_and_restarts() {
    for seed in 0..SEEDS {
        run(seed);
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}
