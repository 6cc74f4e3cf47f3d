//! MOUNT and the port mapper.

use crate::served::{Served, TIMEOUT, env, guarded, handle, memory, mode, open_rule, root};
use bytes::Bytes;
use firn_nfs::{
    ClientRule, Export, Exports, HandleKey, NfsService, PortMapping, ServiceConfig,
    client::NfsClient,
    mount::{self, MountStatus},
    portmap::{self, Mapping, PortMapper},
    rpc::{
        CallError, CallRefused, Client, Credential, Programs, Server, ServerLimits, Target, Transport,
        call_datagram,
    },
    v3,
    xdr::{Encode, Encoder, Opaque},
};
use std::{sync::Arc, time::Duration};

fn export(path: &str, file_system: u64) -> Export {
    Export::new(path, memory(file_system), vec![open_rule()]).unwrap()
}

#[tokio::test]
async fn an_export_and_directories_in_it_can_be_mounted() {
    let served = Served::start([export("/e", 1), export("/e/nested", 2)]).await;
    let client = served.client(root()).await;
    let mount = async |path: &str| client.mount(path).await.unwrap().map(|mounted| mounted.handle);
    let top = mount("/e").await.unwrap();
    let directory = handle(
        client
            .make_directory(&top, "d", mode(0o755))
            .await
            .unwrap()
            .unwrap(),
    );
    let deeper = handle(
        client
            .make_directory(&directory, "deeper", mode(0o700))
            .await
            .unwrap()
            .unwrap(),
    );
    handle(
        client
            .create(&top, "file", guarded(0o600))
            .await
            .unwrap()
            .unwrap(),
    );
    assert_eq!(mount("/e/").await, Ok(top.clone()));
    assert_eq!(mount("/e/d").await, Ok(directory));
    assert_eq!(mount("/e/d//deeper/").await, Ok(deeper));
    assert_ne!(
        mount("/e/nested").await,
        Ok(top),
        "the longest exported path counts"
    );
    for (path, expected) in [
        ("/", MountStatus::NoEntry),
        ("/other", MountStatus::NoEntry),
        ("/ee", MountStatus::NoEntry),
        ("e", MountStatus::NoEntry),
        ("", MountStatus::NoEntry),
        ("/e/missing", MountStatus::NoEntry),
        ("/e/..", MountStatus::NoEntry),
        ("/e/d/..", MountStatus::NoEntry),
        ("/e/file", MountStatus::NotDirectory),
        ("/e/file/x", MountStatus::NotDirectory),
    ] {
        assert_eq!(mount(path).await, Err(expected), "{path}");
    }
    let long = format!("/e/{}", "x".repeat(256));
    assert_eq!(mount(&long).await, Err(MountStatus::NameTooLong));
}

#[tokio::test]
async fn mounts_are_listed_until_they_are_unmounted() {
    let served = Served::start([export("/a", 1), export("/b", 2)]).await;
    let client = served.client(root()).await;
    for path in ["/a", "/b"] {
        client.mount(path).await.unwrap().unwrap();
    }
    let listed = async || {
        let mounts = client.dump_mounts().await.unwrap();
        let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).unwrap();
        mounts
            .iter()
            .map(|one| (text(&one.client.0), text(&one.path.0)))
            .collect::<Vec<_>>()
    };
    let local = |path: &str| ("127.0.0.1".to_owned(), path.to_owned());
    assert_eq!(listed().await, [local("/a"), local("/b")]);
    client.unmount("/a").await.unwrap();
    assert_eq!(listed().await, [local("/b")]);
    client.mount("/a").await.unwrap().unwrap();
    client.unmount_all().await.unwrap();
    assert_eq!(listed().await, []);
    assert_eq!(served.service.mounted(), []);
}

#[tokio::test]
async fn exports_are_listed_with_their_networks() {
    let rules = ["10.0.0.0/8", "2001:db8::/32", "127.0.0.0/24"].map(|network| ClientRule {
        network: network.parse().unwrap(),
        ..open_rule()
    });
    let served = Served::start([Export::new("/e", memory(1), rules.to_vec()).unwrap()]).await;
    let exports = served.client(root()).await.exports().await.unwrap();
    assert_eq!(exports.len(), 1);
    assert_eq!(&exports[0].path.0[..], b"/e");
    let groups: Vec<_> = exports[0].groups.iter().map(|group| &group.0[..]).collect();
    assert_eq!(groups, [&b"2001:db8::/32"[..], b"127.0.0.0/24", b"10.0.0.0/8"]);
}

fn target(program: u32, version: u32) -> Target {
    Target {
        program,
        version,
        credential: Credential::None,
    }
}

/// The arguments of GETPORT.
struct GetPort(u32, u32, u32);

impl Encode for GetPort {
    fn encode(&self, out: &mut Encoder) {
        for word in [self.0, self.1, self.2, 0] {
            out.u32(word);
        }
    }
}

/// The arguments of GETADDR.
struct GetAddress(u32, u32, &'static str, &'static str);

impl Encode for GetAddress {
    fn encode(&self, out: &mut Encoder) {
        (self.0).encode(out);
        (self.1).encode(out);
        for text in [self.2, self.3, ""] {
            Opaque::<255>::from(text).encode(out);
        }
    }
}

/// The address of a port mapper that knows NFS on TCP 2049 and MOUNT on TCP and UDP 20048.
async fn port_mapper() -> (firn_env::Env, Arc<Server>, String) {
    let env = env();
    let mapping = |program, transport, port| Mapping {
        program,
        version: 3,
        transport,
        port,
    };
    let mapper = PortMapper::new(
        &env,
        vec![
            mapping(v3::PROGRAM, Transport::Tcp, 2049),
            mapping(mount::PROGRAM, Transport::Tcp, 20_048),
            mapping(mount::PROGRAM, Transport::Udp, 20_048),
        ],
    );
    let server = Server::new(&env, ServerLimits::default());
    let programs = Arc::new(Programs::new([
        Arc::new(mapper) as Arc<dyn firn_nfs::rpc::Program>
    ]));
    let address = server.listen("127.0.0.1:0", programs.clone()).await.unwrap();
    server.listen_datagram(&address, programs).await.unwrap();
    (env, server, address)
}

#[tokio::test]
async fn the_port_mapper_answers_version_2_by_stream_and_by_datagram() {
    let (env, _server, address) = port_mapper().await;
    let client = Client::connect(&env, &address, TIMEOUT).await.unwrap();
    for (asked, expected) in [
        (GetPort(v3::PROGRAM, 3, 6), 2049),
        (GetPort(v3::PROGRAM, 4, 6), 2049),
        (GetPort(v3::PROGRAM, 3, 17), 0),
        (GetPort(v3::PROGRAM, 3, 99), 0),
        (GetPort(mount::PROGRAM, 3, 17), 20_048),
        (GetPort(1, 1, 6), 0),
    ] {
        let by_stream = client
            .call(&target(portmap::PROGRAM, 2), 3, &asked)
            .await
            .unwrap()
            .u32()
            .unwrap();
        let interval = Duration::from_secs(2);
        let by_datagram = call_datagram(
            &env,
            &address,
            &target(portmap::PROGRAM, 2),
            3,
            &asked,
            3,
            interval,
        )
        .await;
        assert_eq!(
            (by_stream, by_datagram.unwrap().u32().unwrap()),
            (expected, expected)
        );
    }
    let mut dump = client.call(&target(portmap::PROGRAM, 2), 4, &()).await.unwrap();
    let mut entries = Vec::new();
    while dump.bool().unwrap() {
        entries.push([(); 4].map(|()| dump.u32().unwrap()));
    }
    assert_eq!(entries.len(), 3);
    assert_eq!(entries[0], [v3::PROGRAM, 3, 6, 2049]);
}

#[tokio::test]
async fn the_port_mapper_answers_versions_3_and_4_with_universal_addresses() {
    let (env, _server, address) = port_mapper().await;
    let client = Client::connect(&env, &address, TIMEOUT).await.unwrap();
    for version in [3, 4] {
        for (asked, expected) in [
            (GetAddress(v3::PROGRAM, 3, "tcp", ""), "0.0.0.0.8.1"),
            (GetAddress(v3::PROGRAM, 3, "tcp6", ""), "::.8.1"),
            (
                GetAddress(v3::PROGRAM, 3, "tcp", "192.0.2.1.0.111"),
                "192.0.2.1.8.1",
            ),
            (GetAddress(v3::PROGRAM, 3, "udp", ""), ""),
            (GetAddress(v3::PROGRAM, 3, "carrier pigeon", ""), ""),
            (GetAddress(1, 1, "tcp", ""), ""),
        ] {
            let mut results = client
                .call(&target(portmap::PROGRAM, version), 3, &asked)
                .await
                .unwrap();
            assert_eq!(results.opaque(255).unwrap(), expected);
        }
        let mut time = client
            .call(&target(portmap::PROGRAM, version), 6, &())
            .await
            .unwrap();
        assert!(time.u32().unwrap() > 1_600_000_000);
    }
    let exact = GetAddress(v3::PROGRAM, 4, "tcp", "");
    let mut results = client
        .call(&target(portmap::PROGRAM, 4), 9, &exact)
        .await
        .unwrap();
    assert_eq!(
        results.opaque(255).unwrap(),
        "",
        "GETVERSADDR wants that very version"
    );
}

#[tokio::test]
async fn nobody_can_register_and_no_call_is_forwarded() {
    let (env, _server, address) = port_mapper().await;
    let client = Client::connect(&env, &address, TIMEOUT).await.unwrap();
    for procedure in [1, 2] {
        let asked = GetPort(v3::PROGRAM, 3, 6);
        let mut results = client
            .call(&target(portmap::PROGRAM, 2), procedure, &asked)
            .await
            .unwrap();
        assert!(!results.bool().unwrap());
    }
    for version in [2, 3, 4] {
        let forwarded = client.call(&target(portmap::PROGRAM, version), 5, &()).await;
        let refused = CallError::Refused(CallRefused::ProcedureUnavailable);
        assert_eq!(forwarded.unwrap_err().to_string(), refused.to_string());
    }
}

#[tokio::test]
async fn a_service_finds_its_way_into_its_own_port_mapper() {
    let env = env();
    let exports = Arc::new(Exports::new(HandleKey::new(&[1; 32]), [export("/", 1)]).unwrap());
    // A port for the port mapper that is free now; another program may take it meanwhile, so it is tried a few times.
    for _ in 0..5 {
        let mapper = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .unwrap()
            .local_addr()
            .unwrap()
            .to_string();
        let config = ServiceConfig {
            address: "127.0.0.1:0".into(),
            mount_address: Some("127.0.0.1:0".into()),
            port_mapping: PortMapping::Serve(mapper.clone()),
            ..ServiceConfig::default()
        };
        let Ok(service) = NfsService::start(&env, config, exports.clone(), vec![]).await else {
            continue;
        };
        let client = Client::connect(&env, &mapper, TIMEOUT).await.unwrap();
        let port = async |program, protocol| {
            let asked = GetPort(program, 3, protocol);
            client
                .call(&target(portmap::PROGRAM, 2), 3, &asked)
                .await
                .unwrap()
                .u32()
                .unwrap()
        };
        assert!(
            service
                .address()
                .ends_with(&format!(":{}", port(v3::PROGRAM, 6).await))
        );
        assert_eq!(port(v3::PROGRAM, 17).await, 0, "NFS is not served by datagram");
        let mount_port = port(mount::PROGRAM, 6).await;
        assert_ne!(
            mount_port,
            port(v3::PROGRAM, 6).await,
            "MOUNT has a port of its own here"
        );
        assert_eq!(port(mount::PROGRAM, 17).await, mount_port);
        let mounter = format!("127.0.0.1:{mount_port}");
        let mounter = NfsClient::connect(&env, &mounter, root(), TIMEOUT).await.unwrap();
        mounter.mount("/").await.unwrap().unwrap();
        service.shutdown().await;
        return;
    }
    panic!("no port stayed free");
}

#[tokio::test]
async fn a_taken_port_is_named_in_the_error() {
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let exports = Arc::new(Exports::new(HandleKey::new(&[1; 32]), [export("/", 1)]).unwrap());
    let config = ServiceConfig {
        address: address.clone(),
        port_mapping: PortMapping::None,
        ..ServiceConfig::default()
    };
    let Err(error) = NfsService::start(&env(), config, exports, vec![]).await else {
        panic!("the port is taken");
    };
    let text = error.to_string();
    assert!(
        text.contains(&address) && text.contains("another NFS server"),
        "{text}"
    );
}

#[tokio::test]
async fn no_datagram_is_answered_by_a_much_larger_one() {
    let exports = (0..20).map(|number| export(&format!("/an/export/with/a/long/path/{number}"), number));
    let served = Served::start(exports).await;
    let (_env, _server, mapper) = port_mapper().await;
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    for (to, program, version, procedure, what) in [
        (&*mapper, portmap::PROGRAM, 2, 4, "DUMP of the port mapper"),
        (&*mapper, portmap::PROGRAM, 4, 4, "DUMP of rpcbind"),
        (served.service.address(), mount::PROGRAM, 3, 5, "EXPORT of MOUNT"),
    ] {
        let words = [7, 0, 2, program, version, procedure, 0, 0, 0, 0];
        let call: Vec<u8> = words.iter().flat_map(|word: &u32| word.to_be_bytes()).collect();
        socket.send_to(&call, to).await.unwrap();
        let mut reply = [0; 65_536];
        let received = tokio::time::timeout(TIMEOUT, socket.recv(&mut reply));
        let bytes = received.await.expect("a refusal is an answer").unwrap();
        assert!(
            bytes <= 3 * call.len(),
            "{what}: {bytes} bytes for {}",
            call.len()
        );
        // By stream, where the address is proven, all of it comes.
        let client = Client::connect(&env(), to, TIMEOUT).await.unwrap();
        client
            .call(&target(program, version), procedure, &())
            .await
            .expect(what);
    }
}
