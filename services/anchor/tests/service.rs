//! The service as its hosts use it: what it promises of each call, who may make which, and that each commit is counted once.

use async_trait::async_trait;
use firn_anchor::{
    Anchor, AnchorAnswer, AnchorBackend, AnchorCall, AnchorError, AnchorRole, ArenaChange, CleaningNote,
    HoldChange, Listing, MemberCall, MemberEntry, MemberNumber, OwnerId, Ownership, Presence, PrincipalId,
    RetiredSegment, Root, SeenMember, SeenSegment, Sweep, VolumeChange, WriterTenure, conformance,
};
use firn_anchor_service::{Admitted, AnchorService, CommitMeter, GrantedCaller, Ledger};
use firn_env::{Env, mutants::planting, sim::Simulation};
use firn_format::{FamilyId, Location, OwnershipEpoch, SegmentId, Uid, Version, VolumeId, WriterId};
use firn_identity::{EdgeId, TenantId, TenantVolume};
use firn_table::{
    Condition, FaultRates, ItemKey, ItemVersion, MemoryTable, MemoryTableClient, Table, TableError, Write,
};
use firn_usage::{Meter, ResourceName, UsageBatch};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

const FAMILY: FamilyId = FamilyId([5; 16]);
const MAIN: VolumeId = VolumeId([1; 16]);
const OWNER: OwnerId = OwnerId([6; 16]);
/// An edge of another tenant that a volume was granted to.
const GRANTEE: GrantedCaller = GrantedCaller {
    tenant: TenantId([7; 16]),
    edge: EdgeId([8; 16]),
};

fn named(number: u8) -> TenantVolume {
    TenantVolume {
        tenant: TenantId([number; 16]),
        volume: MAIN,
    }
}

/// A caller at the service, by text, as at the end of a wire.
struct Caller {
    service: Arc<AnchorService>,
    volume: TenantVolume,
    role: AnchorRole,
    principal: PrincipalId,
    guards: Vec<Write>,
    granted: Option<GrantedCaller>,
}

impl Caller {
    fn new(service: &Arc<AnchorService>, number: u8, role: AnchorRole) -> Self {
        Self {
            service: service.clone(),
            volume: named(number),
            role,
            principal: PrincipalId([1; 16]),
            guards: Vec::new(),
            granted: None,
        }
    }
}

#[async_trait]
impl AnchorBackend for Caller {
    async fn call(&self, call: AnchorCall) -> Result<AnchorAnswer, TableError> {
        let text = serde_json::to_string(&call).unwrap();
        let admitted = Admitted {
            volume: self.volume,
            role: self.role,
            principal: self.principal,
            guards: self.guards.clone(),
            granted: self.granted,
        };
        let answer = self
            .service
            .answer(admitted, serde_json::from_str(&text).unwrap())
            .await?;
        let text = serde_json::to_string(&answer).unwrap();
        Ok(serde_json::from_str(&text).unwrap())
    }
}

async fn commit(env: &Env, anchor: &Anchor, ownership: &mut Ownership) -> bool {
    let root = match ownership.unresolved() {
        Some(root) => root.clone(),
        None => {
            // Versions behind the first may skip; the count does not.
            let next = |root: &Root| root.version.0 + 1 + env.random_below(3);
            let version = Version(ownership.root().map_or(1, next));
            let place = Location {
                segment: SegmentId {
                    writer: WriterId(1),
                    sequence: version.0,
                },
                offset: 0,
                length: 100,
            };
            let now_ms = env.wall().as_millis();
            ownership.next_root(Uid([7; 32]), place, version, env.random_bytes(), now_ms)
        }
    };
    anchor.commit(ownership, root).await.is_ok()
}

#[tokio::test]
async fn a_service_in_this_process_conforms() {
    let directory = tempfile::tempdir().unwrap();
    let env = firn_env::real(directory.path()).unwrap();
    let service = Arc::new(AnchorService::new(MemoryTable::new().connect(&env)));
    conformance::run(Arc::new(Caller::new(&service, 1, AnchorRole::Edge)), &env).await;
    // Two families never see each other.
    conformance::run(Arc::new(Caller::new(&service, 2, AnchorRole::Edge)), &env).await;
}

/// On this thread, where bugs are planted.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(future)
}

/// One of each call, with who may make it beside those who read.
fn calls() -> Vec<(AnchorCall, Option<AnchorRole>)> {
    let segment = SegmentId {
        writer: WriterId(1),
        sequence: 1,
    };
    let seen = SeenSegment {
        segment,
        seen: ItemVersion(1),
    };
    let draw = |tenure| AnchorCall::DrawWriter {
        seen: ItemVersion(1),
        writer: WriterId(1),
        tenure,
        drawn_at_ms: 0,
        change_id: [0; 16],
    };
    let members = |call| AnchorCall::Members { volume: MAIN, call };
    let retired = RetiredSegment {
        mover: WriterId(1),
        retired_at_ms: 0,
        segment_bytes: 1,
        moved_objects: 1,
        keep_for_ever: false,
        covers: Vec::new(),
    };
    let reads = [
        AnchorCall::Family {},
        AnchorCall::Volume { volume: MAIN },
        AnchorCall::Volumes {
            after: None,
            limit: 1,
        },
        AnchorCall::VolumeNamed { name: "n".into() },
        AnchorCall::Writer { writer: WriterId(1) },
        AnchorCall::Proposal { volume: MAIN },
        AnchorCall::CleanerRound {},
        AnchorCall::Retired { segment },
        AnchorCall::ListRetired {
            after: None,
            limit: 1,
        },
        AnchorCall::ListDoomed {
            after: None,
            limit: 1,
        },
        AnchorCall::Doomed { segment },
        AnchorCall::ListRounds { after: 0, limit: 1 },
        AnchorCall::CleanerCursor { sweep: Sweep::Log },
        AnchorCall::CleaningAccount {},
        AnchorCall::Hold {},
        members(MemberCall::Member {
            member: MemberNumber(1),
        }),
        members(MemberCall::Arenas {
            after: None,
            limit: 1,
        }),
    ];
    let edges = [
        members(MemberCall::Join {
            seen: ItemVersion(1),
            member: MemberNumber(1),
            edge: OWNER,
            name: "n".into(),
            drawn_at_ms: 0,
            change_id: [0; 16],
        }),
        members(MemberCall::Presence {
            by: SeenMember {
                member: MemberNumber(1),
                seen: ItemVersion(1),
            },
            change: Presence::Beat,
            incarnation: WriterId(1),
            change_id: [0; 16],
        }),
        AnchorCall::CreateFamily {
            created_at_ms: 0,
            change_id: [0; 16],
        },
        AnchorCall::CreateVolume {
            volume: MAIN,
            name: "n".into(),
            root: None,
            grant: [0; 16],
            created_at_ms: 0,
            change_id: [0; 16],
        },
        AnchorCall::ChangeVolume {
            volume: MAIN,
            seen: ItemVersion(1),
            change: VolumeChange::ForgetRetained {
                fenced: OwnershipEpoch(1),
                change_id: [0; 16],
            },
        },
        draw(WriterTenure::Unknown),
        draw(WriterTenure::FirstRoot { volume: MAIN }),
        draw(WriterTenure::Owner {
            volume: MAIN,
            epoch: OwnershipEpoch(1),
        }),
    ];
    let cleaners = [
        draw(WriterTenure::Cleaner),
        AnchorCall::EndWriter {
            writer: WriterId(1),
            seen: ItemVersion(1),
        },
        AnchorCall::Retire {
            seen: None,
            mover: WriterId(1),
            mover_seen: ItemVersion(1),
            segments: Vec::new(),
            proposals: Vec::new(),
            round: None,
            change_id: [0; 16],
        },
        AnchorCall::ForgetRound {
            round: 1,
            seen: ItemVersion(1),
        },
        AnchorCall::SeeDoomed {
            segments: vec![seen.clone()],
            seen_at_ms: 0,
        },
        AnchorCall::ForgetDoomed {
            segment: seen.clone(),
        },
        AnchorCall::ChangeHold {
            seen: None,
            round: None,
            change: HoldChange::Begin,
            changed_at_ms: 0,
            change_id: [0; 16],
        },
        AnchorCall::ReleaseDoomed {
            hold: ItemVersion(1),
            segments: vec![seen.clone()],
            released_at_ms: 0,
        },
        AnchorCall::ChangeRetired {
            segment: seen,
            retired: Some(retired),
        },
        AnchorCall::NoteCleaning {
            seen: None,
            note: CleaningNote {
                requests: 1,
                listing: None,
                noted_at_ms: 1,
            },
            change_id: [0; 16],
        },
        AnchorCall::SetCleanerCursor {
            sweep: Sweep::Log,
            seen: None,
            after: None,
        },
    ];
    let reads = reads.into_iter().map(|call| (call, None));
    let edges = edges.into_iter().map(|call| (call, Some(AnchorRole::Edge)));
    let cleaners = cleaners.into_iter().map(|call| (call, Some(AnchorRole::Cleaner)));
    reads.chain(edges).chain(cleaners).collect()
}

/// Whether each role is let in where it should be and nowhere else.
async fn matrix_holds(env: &Env) -> bool {
    let mut holds = true;
    for (call, only) in calls() {
        for role in [AnchorRole::Edge, AnchorRole::Cleaner, AnchorRole::Observer] {
            let table = MemoryTable::new();
            let service = Arc::new(AnchorService::new(table.connect(env)));
            let before = table.counts();
            let answer = Caller::new(&service, 1, role).call(call.clone()).await;
            let refused = matches!(answer, Err(TableError::Refused(_)));
            let expected = only.is_some_and(|only| only != role);
            holds &= refused == expected;
            // Who is refused does not even cost a request.
            holds &= !refused || table.counts() == before;
        }
    }
    holds
}

#[test]
fn each_role_makes_its_own_calls_and_no_others() {
    let directory = tempfile::tempdir().unwrap();
    let env = firn_env::real(directory.path()).unwrap();
    assert!(block_on(matrix_holds(&env)));
    let planted = planting(Some("anchor.cleaners_may_all"), || block_on(matrix_holds(&env)));
    assert!(!planted, "the matrix would not notice a hole");
}

/// Two machines of one volume, each with a member: neither says anything in the other's name, and what either may do to the other's leases it does
/// in its own.
async fn members_speak_for_themselves(env: &Env) -> bool {
    let service = Arc::new(AnchorService::new(MemoryTable::new().connect(env)));
    let reached = |number| {
        let caller = Caller {
            principal: PrincipalId([number; 16]),
            ..Caller::new(&service, 1, AnchorRole::Edge)
        };
        Anchor::over(Arc::new(caller), env.clone(), FAMILY)
    };
    let (hers, his) = (reached(1), reached(2));
    hers.create_family().await.unwrap();
    hers.create_volume(MAIN, "main").await.unwrap();
    let mut owned = hers.acquire(MAIN, OWNER, "first").await.unwrap();
    assert!(commit(env, &hers, &mut owned).await);
    hers.drain(&mut owned).await.unwrap();
    hers.share_by_inode(MAIN).await.unwrap();
    let member = hers.join_volume(MAIN, OWNER, "hers").await.unwrap();
    let mut alice = hers.start_member(MAIN, member).await.unwrap();
    let others = |result: Result<(), AnchorError>| match result {
        Err(AnchorError::OthersMember { .. }) => true,
        Ok(()) | Err(AnchorError::MemberBroken { .. }) => false,
        other => panic!("{other:?}"),
    };
    let inode = u64::from(member.0) << 32;
    let mut holds = others(his.start_member(MAIN, member).await.map(drop));
    holds &= others(his.beat_member(&mut alice).await);
    holds &= others(his.leave(&mut alice).await);
    let taken = his.change_lease(&mut alice, (4, 0), ArenaChange::Take).await;
    holds &= others(taken.map(drop));
    if !holds {
        return false;
    }
    // In its own name it waits for hers, and breaks her once she is silent.
    let number = his.join_volume(MAIN, OwnerId([9; 16]), "his").await.unwrap();
    let mut bob = his.start_member(MAIN, number).await.unwrap();
    his.change_lease(&mut bob, (inode, 0), ArenaChange::Want)
        .await
        .unwrap();
    let (tuple, version) = his.member(MAIN, member).await.unwrap();
    let silent = MemberEntry {
        member,
        tuple,
        version,
    };
    his.break_member(&mut bob, (inode, 0), &silent).await.unwrap();
    let broken = hers.beat_member(&mut alice).await;
    matches!(broken, Err(AnchorError::MemberBroken { .. }))
}

#[test]
fn a_machine_speaks_for_its_own_member_and_for_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let env = firn_env::real(directory.path()).unwrap();
    assert!(block_on(members_speak_for_themselves(&env)));
    let bug = Some("anchor.members_speak_for_each_other");
    assert!(!planting(bug, || block_on(members_speak_for_themselves(&env))));
}

#[tokio::test]
async fn nothing_changes_where_a_guard_does_not_hold() {
    let directory = tempfile::tempdir().unwrap();
    let env = firn_env::real(directory.path()).unwrap();
    let table = MemoryTable::new();
    let client = table.connect(&env);
    let service = Arc::new(AnchorService::new(client.clone()));
    let record = ItemKey::new("tenant/t", "edge/e");
    let put = |condition| Write::Put {
        key: record.clone(),
        value: "active".into(),
        condition,
    };
    let applied = client.transact(vec![put(Condition::Absent)]).await.unwrap();
    let looked_at = applied[0].unwrap();
    let caller = Caller {
        guards: vec![Write::Check {
            key: record.clone(),
            condition: Condition::Version(looked_at),
        }],
        ..Caller::new(&service, 1, AnchorRole::Edge)
    };
    let anchor = Anchor::over(Arc::new(caller), env.clone(), FAMILY);
    anchor.create_family().await.unwrap();
    anchor.create_volume(MAIN, "main").await.unwrap();
    let mut ownership = anchor.acquire(MAIN, OWNER, "edge").await.unwrap();
    assert!(commit(&env, &anchor, &mut ownership).await);
    client
        .transact(vec![put(Condition::Version(looked_at))])
        .await
        .unwrap();
    let before = anchor.load(MAIN).await.unwrap();
    let root = ownership.next_root(
        Uid([8; 32]),
        ownership.root().unwrap().location,
        Version(ownership.root().unwrap().version.0 + 1),
        [1; 16],
        0,
    );
    let call = AnchorCall::ChangeVolume {
        volume: MAIN,
        seen: before.1,
        change: VolumeChange::Commit {
            grant: ownership.tuple().grant,
            root,
        },
    };
    let caller = Caller {
        guards: vec![Write::Check {
            key: record,
            condition: Condition::Version(looked_at),
        }],
        ..Caller::new(&service, 1, AnchorRole::Edge)
    };
    let answer = caller.call(call).await;
    assert!(
        matches!(answer, Err(TableError::ConditionFailed { .. })),
        "{answer:?}"
    );
    assert_eq!(anchor.load(MAIN).await.unwrap(), before);
}

/// By source and number: of what, and how much.
type Taken = BTreeMap<(String, u64), (ResourceName, Meter, u64)>;

/// A ledger that takes each number once, may die before or after that, and notices a number with two contents.
#[derive(Clone)]
struct Book {
    env: Env,
    taken: Arc<Mutex<Taken>>,
}

impl Book {
    fn sum(&self, wanted: impl Fn(&ResourceName, Meter) -> bool) -> u64 {
        let taken = self.taken.lock().unwrap();
        let counts = taken
            .values()
            .filter(|(resource, meter, _)| wanted(resource, *meter));
        counts.map(|(.., quantity)| quantity).sum()
    }
}

#[async_trait]
impl Ledger for Book {
    async fn accept(&self, batch: &UsageBatch) -> Result<(), String> {
        self.env
            .sleep(Duration::from_millis(self.env.random_below(20)))
            .await;
        if self.env.random_below(5) == 0 {
            return Err("away".into());
        }
        for record in batch.records() {
            let key = (record.source.to_string(), record.sequence);
            let observed = record.observation;
            let counted = (observed.resource, observed.meter, observed.quantity);
            let mut taken = self.taken.lock().unwrap();
            let kept = taken.entry(key).or_insert_with(|| counted.clone());
            assert_eq!(*kept, counted, "a number with two contents");
        }
        if self.env.random_below(5) == 0 {
            return Err("the receipt was lost".into());
        }
        Ok(())
    }
}

/// Commits and cleans while several instances count, on a table with faults; gives what the tuples count and what the book has, meter by
/// meter, and last the grantee's commits, which has the clone.
async fn counting(env: Env, table: MemoryTable, rates: FaultRates) -> [(u64, u64); 4] {
    let faulty = |env: &Env| -> Arc<MemoryTableClient> {
        let client = table.connect(env);
        client.set_rates(rates.clone());
        client
    };
    let service = Arc::new(AnchorService::new(faulty(&env)));
    let setup = Anchor::within(
        table.connect(&env),
        env.clone(),
        FAMILY,
        named(1).roots_partition(),
        AnchorRole::Edge,
    );
    setup.create_family().await.unwrap();
    let book = Book {
        env: env.clone(),
        taken: Arc::default(),
    };
    let mut meters = Vec::new();
    for _ in 0..3 {
        let (meter, book, env) = (
            CommitMeter::new(env.clone(), faulty(&env)),
            book.clone(),
            env.clone(),
        );
        meters.push(env.clone().spawn("meter", async move {
            for _ in 0..20 {
                let _again_later = meter.settle(named(1), &book).await;
                env.sleep(Duration::from_millis(env.random_below(200))).await;
            }
        }));
    }
    let within = |client| {
        let kept = named(1).roots_partition();
        Anchor::within(client, env.clone(), FAMILY, kept, AnchorRole::Cleaner)
    };
    let (cleaner, inner) = (within(faulty(&env)), env.clone());
    let cleaning = env.spawn("cleaner", async move {
        for _ in 0..15 {
            let note = CleaningNote {
                requests: inner.random_below(30),
                listing: Some(Listing {
                    after: None,
                    until: None,
                    bytes: 100_000_000 + inner.random_below(1_000_000_000),
                }),
                noted_at_ms: inner.wall().as_millis(),
            };
            let _or_in_doubt = cleaner.note_cleaning(note).await;
            inner.sleep(Duration::from_millis(inner.random_below(100))).await;
        }
    });
    for (number, name, granted) in [(1, "main", None), (2, "clone", Some(GRANTEE))] {
        let volume = VolumeId([number; 16]);
        setup.create_volume(volume, name).await.unwrap();
        let mut caller = Caller::new(&service, 1, AnchorRole::Edge);
        caller.granted = granted;
        let anchor = Anchor::over(Arc::new(caller), env.clone(), FAMILY);
        let mut held = loop {
            if let Ok(held) = anchor.acquire(volume, OWNER, "edge").await {
                break held;
            }
        };
        for _ in 0..15 {
            let _or_in_doubt = commit(&env, &anchor, &mut held).await;
            env.sleep(Duration::from_millis(env.random_below(50))).await;
        }
    }
    for task in meters.into_iter().chain([cleaning]) {
        task.await.unwrap();
    }
    table.settle();
    let meter = CommitMeter::new(env.clone(), table.connect(&env));
    while !matches!(meter.settle(named(1), &book).await, Ok(0)) {}
    let volumes = setup.volumes().await.unwrap();
    let made = volumes.iter().map(|entry| entry.tuple.commits).sum();
    let clone = volumes.iter().find(|entry| entry.tuple.name == "clone").unwrap();
    let (account, _) = within(table.connect(&env)).cleaning_account().await.unwrap();
    let its = ResourceName::of_volume(&MAIN.to_string(), Some(&GRANTEE.to_string())).unwrap();
    let charged = |wanted| book.sum(|_, meter| meter == wanted);
    [
        (made, charged(Meter::ROOT_COMMITS)),
        (account.requests, charged(Meter::CLEANER_OPERATIONS)),
        (account.stored_byte_hours(), charged(Meter::STORED_BYTE_HOURS)),
        (clone.tuple.commits, book.sum(|resource, _| *resource == its)),
    ]
}

#[test]
fn each_count_is_charged_once_by_instances_that_fail_over_a_table_that_loses_replies() {
    let mut all = [0; 4];
    for seed in 1..=60 {
        let simulation = Simulation::new(seed);
        let env = simulation.machine("service").env();
        let rates = FaultRates {
            throttle_per_mille: 50,
            lose_reply_per_mille: 100,
            late_per_mille: 50,
            late_requests: 1 + seed % 20,
            delay: Duration::from_millis(1)..=Duration::from_millis(20),
        };
        let counts = simulation.run(counting(env, MemoryTable::new(), rates)).unwrap();
        for (all, (made, charged)) in all.iter_mut().zip(counts) {
            assert_eq!(made, charged, "seed {seed}");
            *all += made;
        }
    }
    let [commits, requests, byte_hours, its] = all;
    assert!(
        commits > 60 * 20 && its > 60 * 8,
        "only {commits} commits, {its} of the grantee"
    );
    assert!(
        requests > 60 * 100 && byte_hours > 60,
        "{requests} requests, {byte_hours} byte-hours"
    );
}
