//! Metrics of a real node, asked for as Prometheus asks.
#![allow(clippy::disallowed_methods, reason = "it starts a real program")]

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, Command, Stdio},
    time::Duration,
};

/// Far longer than a reply takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_node_serves_its_metrics_where_its_configuration_says() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let program = env!("CARGO_BIN_EXE_firn-blockd");
    let done = |arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    done(&["secret", &path("secret").display().to_string()]);
    let configuration = format!(
        "[cluster]\ntable = \"redb:{}\"\nsecret = \"{}\"\n\n[node]\ndirectory = \"{}\"\nsize = \"160MiB\"\n\
         listen = \"127.0.0.1:0\"\nmetrics = \"127.0.0.1:0\"\n",
        path("table.redb").display(),
        path("secret").display(),
        path("node").display()
    );
    fs::write(path("blockd.toml"), configuration).unwrap();
    let named = path("blockd.toml").display().to_string();
    done(&["--config", &named, "init", "--rows", "24"]);
    let mut process = Command::new(program)
        .args(["--config", &named, "node"])
        .stdout(Stdio::piped())
        .stderr(fs::File::create(path("log")).unwrap())
        .spawn()
        .unwrap();
    let lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let _process = Process(process);
    let address = lines
        .map_while(Result::ok)
        .find_map(|line| {
            Some(
                line.strip_prefix("metrics at http://")?
                    .strip_suffix("/metrics")?
                    .to_owned(),
            )
        })
        .unwrap_or_else(|| panic!("it does not serve: {}", fs::read_to_string(path("log")).unwrap()));
    let mut stream = TcpStream::connect(&address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nhost: {address}\r\n\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 200 OK\r\n"), "{reply}");
    assert!(reply.contains("application/openmetrics-text"), "{reply}");
    for line in ["firn_blockd_read_only 0", "firn_blockd_used_tracts 0", "# EOF"] {
        assert!(reply.lines().any(|found| found == line), "{line}: {reply}");
    }
}
