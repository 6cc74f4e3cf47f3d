//! `firn-api`: the control plane as a program.

mod listening_options;
mod tables;

use anyhow::{Context as _, bail};
use clap::{CommandFactory as _, Parser, Subcommand};
use firn_api::{
    App, Boot, BothClouds, CloudSessions, DiskPlacement, FileMailer, Fleet, MAX_POOL_NODES, MasterSecret,
    NoCloud, NoFleet, NodeProvisioner, POLICY, Parts, Pool, PoolSettings, Processes, RegoPolicy, openapi,
    types::AuditEntry, verify_chain,
};
use firn_blockd_placement::Placement;
use firn_env::{Env, eprintln, println};
use firn_identity::{PeerIdentity, PeerKind, SigningKey, TenantId, UnixTime, certificate_request, pem};
use firn_table::TableUrl;
use listening_options::{LimitOptions, ListeningOptions};
use std::{
    fs::{self, File, OpenOptions},
    io::{BufRead as _, BufReader, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};
use tables::Tables;
use zeroize::Zeroizing;

/// The control plane of Firn.
#[derive(Parser)]
#[command(
    name = "firn-api",
    version,
    after_help = "Exit codes: 0 done; 1 failed; 2 the command line is wrong."
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Makes a new master secret in a file that only its owner reads. Whoever has it is the service: back it up apart.
    NewSecret {
        /// The file, which must not exist.
        file: PathBuf,
    },
    /// Serves until SIGTERM or an interrupt.
    Serve(Box<Serve>),
    /// Issues a certificate, good for some days, to a component of the service or to its staff.
    Certify {
        /// `anchor`, `cleaner`, or `support` for who grants credits and publishes prices.
        name: String,
        /// A directory, made if need be, in which key.pem, certificate.pem and authority.pem are written anew.
        #[arg(long)]
        directory: PathBuf,
        /// The file with the master secret.
        #[arg(long)]
        secret: PathBuf,
        /// The installation's name in certificates.
        #[arg(long, default_value = "firn.local")]
        trust_domain: String,
    },
    /// Prints the OpenAPI document.
    Openapi,
    /// Writes everything in the table into a new file. Stop the service first.
    Backup {
        #[command(flatten)]
        tables: Tables,
        /// The file, which must not exist.
        file: PathBuf,
    },
    /// Writes who and what lives into a new file, so that a restore brings back nobody who was removed. Take it often, and keep it
    /// apart from the table; it holds no secret.
    Roster {
        /// The table, such as redb:/var/lib/firn/api.redb.
        #[arg(long)]
        table: TableUrl,
        /// The file, which must not exist.
        file: PathBuf,
    },
    /// Moves the roots of an earlier installation into a table of their own, with all instances and cleaners stopped.
    MoveRoots(Tables),
    /// Puts a backup into an empty table, and ends there what had ended since it was taken.
    Restore {
        #[command(flatten)]
        tables: Tables,
        #[command(flatten)]
        since: tables::SinceWhat,
        /// The backup.
        file: PathBuf,
    },
    /// Checks audit logs.
    #[command(subcommand)]
    Audit(Audit),
    #[command(flatten)]
    Manual(firn_manual::ManualCommand),
}

#[derive(Subcommand)]
enum Audit {
    /// Checks that a file of entries, one JSON object a line and the first first, is one unbroken chain.
    Verify {
        /// The entries, as `items` of the pages of GET …/audit.
        file: PathBuf,
        /// The hash of the last entry, from a signed head that was kept elsewhere.
        #[arg(long)]
        head: Option<String>,
    },
}

#[derive(clap::Args)]
struct Serve {
    #[command(flatten)]
    listening: ListeningOptions,
    #[command(flatten)]
    limits: LimitOptions,
    #[command(flatten)]
    tables: Tables,
    /// The directory for mail.
    #[arg(long)]
    state: PathBuf,
    /// The file of the master secret.
    #[arg(long)]
    secret: PathBuf,
    /// The address clients use, which tokens name as their issuer.
    #[arg(long, default_value = "https://localhost:7400")]
    issuer: String,
    /// The address of edges, nodes and machines with disks, where a gateway has a port of its own for who shows a certificate: invitations
    /// and tickets name it. Without it they call where whoever invited them does.
    #[arg(long, value_name = "URL", value_parser = machine_server)]
    machine_server: Option<String>,
    /// The installation's name in certificates.
    #[arg(long, default_value = "firn.local")]
    trust_domain: String,
    /// The tenant in whose name the fleet's nodes are invited, which copy every tenant's sealed blocks; the pool's tenant is one
    /// as well. Other tenants' nodes get certificates with which the fleet's do not speak.
    #[arg(long, value_name = "TENANT")]
    fleet_tenant: Option<TenantId>,
    /// The cluster of disk nodes on which disks are placed. Without it disks are refused.
    #[arg(long, requires = "cluster_table")]
    cluster: Option<String>,
    /// The cluster's own table. Nodes open it, so it must be another than the service's.
    #[arg(long, value_name = "TABLE", requires = "cluster")]
    cluster_table: Option<TableUrl>,
    #[command(flatten)]
    pool: PoolOptions,
    #[cfg(feature = "aws")]
    #[command(flatten)]
    cloud: Cloud,
    #[cfg(feature = "azure")]
    #[command(flatten)]
    azure: Azure,
    /// Raise it when a token key leaked: all tokens end at once.
    #[arg(long, default_value = "0")]
    token_generation: u32,
    /// For how many seconds a machine that has a disk attached may use it without a word of the service: outages up to eleven twelfths
    /// of it do not stop disks, and a disk that was detached by force is safe from its old machine after it at the latest.
    #[arg(long, default_value_t = firn_api::DISK_CAPABILITY_SECONDS, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(600..=86_400))]
    disk_capability_seconds: u64,
    /// Spreads what the ledger writes for all tenants over 32 partitions of the table instead of one, which DynamoDB ends at some thousands of
    /// offices. Give it once all instances run a build that has this option: older ones refuse what was moved.
    #[arg(long)]
    spread_ledger: bool,
}

/// Nodes that the service starts when a disk does not fit, and ends when they are not needed.
#[derive(clap::Args)]
struct PoolOptions {
    /// The tenant in whose name they are; it needs the quota for them. Without it nodes are started by people only.
    #[arg(
        long = "pool-tenant",
        value_name = "TENANT",
        requires = "cluster",
        requires = "pool_node_bytes"
    )]
    pool_tenant: Option<TenantId>,
    /// Never fewer of them: copies are at most three, and what the last three hold nobody else could take.
    #[arg(long, default_value = "3", value_parser = clap::value_parser!(u32).range(3..=i64::from(MAX_POOL_NODES)))]
    pool_min: u32,
    /// Never more of them.
    #[arg(long, default_value = "10", value_parser = clap::value_parser!(u32).range(3..=i64::from(MAX_POOL_NODES)))]
    pool_max: u32,
    /// Where they are put, evenly; for instances an availability zone. May be given several times.
    #[arg(long = "pool-domain", value_name = "DOMAIN", default_value = "default")]
    pool_domains: Vec<String>,
    /// One is ended when it was not needed for so many seconds.
    #[arg(long, default_value = "3600")]
    pool_idle_seconds: u64,
    /// What of its disk a node uses, in bytes.
    #[arg(long, value_name = "BYTES")]
    pool_node_bytes: Option<u64>,
    /// The authority of this service's certificate, in PEM, if machines do not know it by themselves.
    #[arg(long, value_name = "FILE")]
    pool_authority: Option<PathBuf>,
    /// Machines are processes of this machine: this program (firn-blockd), below the service's state.
    #[arg(long, value_name = "PROGRAM")]
    pool_process: Option<PathBuf>,
    #[cfg(feature = "aws")]
    #[command(flatten)]
    ec2: Ec2Options,
}

/// Machines are instances of EC2. Credentials come from the environment, as AWS's tools take them.
#[cfg(feature = "aws")]
#[derive(clap::Args)]
struct Ec2Options {
    /// The image of instances, which has firn-blockd.
    #[arg(
        long,
        value_name = "AMI",
        conflicts_with = "pool_process",
        requires = "ec2_type"
    )]
    ec2_image: Option<String>,
    /// Their type, such as i4i.xlarge.
    #[arg(long, value_name = "TYPE")]
    ec2_type: Option<String>,
    /// Their instance profile, whose role opens the cluster's table and no other.
    #[arg(long, value_name = "NAME")]
    ec2_profile: Option<String>,
    /// A security group; may be given several times.
    #[arg(long = "ec2-security-group", value_name = "GROUP")]
    ec2_security_groups: Vec<String>,
    /// The subnet of a failure domain; may be given several times.
    #[arg(long = "ec2-subnet", value_name = "DOMAIN=SUBNET", value_parser = domain_and_subnet)]
    ec2_subnets: Vec<(String, String)>,
    /// The region.
    #[arg(long, default_value = "us-east-1", value_name = "REGION")]
    ec2_region: String,
    /// Its address, if it is not Amazon's own.
    #[arg(long, value_name = "URL")]
    ec2_endpoint: Option<String>,
}

#[cfg(feature = "aws")]
fn domain_and_subnet(text: &str) -> Result<(String, String), String> {
    let (domain, subnet) = text.split_once('=').ok_or("write DOMAIN=SUBNET")?;
    Ok((domain.to_owned(), subnet.to_owned()))
}

/// What starts the pool's machines.
fn provisioner(env: &Env, options: &Serve) -> anyhow::Result<Arc<dyn NodeProvisioner>> {
    let pool = &options.pool;
    if let Some(program) = &pool.pool_process {
        return Ok(Arc::new(Processes::new(
            env,
            &options.state.join("nodes"),
            program,
        )));
    }
    #[cfg(feature = "aws")]
    if let (Some(image), Some(instance_type)) = (&pool.ec2.ec2_image, &pool.ec2.ec2_type) {
        let account =
            firn_api::AwsAccount::from_environment(env, &pool.ec2.ec2_region, pool.ec2.ec2_endpoint.clone())?;
        let shape = firn_api::InstanceShape {
            image: image.clone(),
            instance_type: instance_type.clone(),
            instance_profile: pool.ec2.ec2_profile.clone(),
            security_groups: pool.ec2.ec2_security_groups.clone(),
            subnets: pool.ec2.ec2_subnets.iter().cloned().collect(),
        };
        return Ok(Arc::new(firn_api::Ec2::new(account, shape)));
    }
    bail!("--pool-tenant needs what gives machines: --pool-process, or --ec2-image and --ec2-type")
}

/// An address that invitations may name: nobody is sent to one without TLS.
fn machine_server(text: &str) -> Result<String, String> {
    match text.strip_prefix("https://") {
        Some(host) if !host.is_empty() => Ok(text.trim_end_matches('/').to_owned()),
        _ => Err("write https://HOST:PORT".into()),
    }
}

fn pool(env: &Env, options: &Serve) -> anyhow::Result<Option<Pool>> {
    let pool = &options.pool;
    let (Some(tenant), Some(cluster), Some(cluster_table), Some(node_bytes)) = (
        pool.pool_tenant,
        &options.cluster,
        &options.cluster_table,
        pool.pool_node_bytes,
    ) else {
        return Ok(None);
    };
    let authority = match &pool.pool_authority {
        Some(file) => Some(fs::read_to_string(file).with_context(|| file.display().to_string())?),
        None => None,
    };
    let boot = Boot {
        server: options.machine_server.as_ref().unwrap_or(&options.issuer).clone(),
        authority,
        cluster: cluster.clone(),
        table: cluster_table.to_string(),
        node_bytes,
    };
    Ok(Some(Pool {
        settings: PoolSettings {
            tenant,
            min_nodes: pool.pool_min,
            max_nodes: pool.pool_max,
            failure_domains: pool.pool_domains.clone(),
            idle_seconds: pool.pool_idle_seconds,
            boot,
        },
        provisioner: provisioner(env, options)?,
    }))
}

/// Credentials of AWS for edges. The service's own come from the environment, as AWS's tools take them.
#[cfg(feature = "aws")]
#[derive(clap::Args)]
struct Cloud {
    /// The role that is assumed for edges of managed volumes, such as arn:aws:iam::123456789012:role/firn-edges. Without it
    /// edges get no credentials.
    #[arg(long, value_name = "ARN", requires = "managed_buckets")]
    edge_role: Option<String>,
    /// Where managed volumes lie, by region, such as eu-central-1=firn-eu; may be given several times.
    #[arg(long = "managed-bucket", value_name = "REGION=BUCKET", value_parser = region_and_bucket)]
    managed_buckets: Vec<(String, String)>,
    /// The region of the token service.
    #[arg(long, default_value = "us-east-1", value_name = "REGION")]
    sts_region: String,
    /// Its address, if it is not Amazon's own.
    #[arg(long, value_name = "URL")]
    sts_endpoint: Option<String>,
    /// Where tenants' buckets are, if not at Amazon's.
    #[arg(long, value_name = "URL")]
    s3_endpoint: Option<String>,
}

#[cfg(feature = "aws")]
fn region_and_bucket(text: &str) -> Result<(String, String), String> {
    let (region, bucket) = text.split_once('=').ok_or("write REGION=BUCKET")?;
    let place = firn_api::Place::parse(&format!("s3://{bucket}")).map_err(|error| error.to_string())?;
    Ok((region.to_owned(), place.bucket))
}

/// Signatures of Azure for edges. The account's key comes from the environment: AZURE_STORAGE_ACCOUNT_KEY.
#[cfg(feature = "azure")]
#[derive(clap::Args)]
struct Azure {
    /// The storage account in which managed volumes lie, a container for each. Without it there are none in Azure.
    #[arg(long, value_name = "NAME", requires = "azure_region")]
    azure_account: Option<String>,
    /// What tenants call the place when they make a volume, such as westeurope.
    #[arg(long, value_name = "REGION")]
    azure_region: Option<String>,
    /// Where the account's blobs are, if not at Microsoft's.
    #[arg(long, value_name = "URL")]
    azure_endpoint: Option<String>,
}

/// What gives edges their credentials.
fn cloud(env: &Env, options: &Serve) -> anyhow::Result<Arc<dyn CloudSessions>> {
    Ok(Arc::new(BothClouds {
        s3: s3(env, options)?,
        azure: azure(env, options)?,
    }))
}

fn azure(env: &Env, options: &Serve) -> anyhow::Result<Arc<dyn CloudSessions>> {
    #[cfg(feature = "azure")]
    if let Azure {
        azure_account: Some(account),
        azure_region: Some(region),
        azure_endpoint,
    } = &options.azure
    {
        let key = Zeroizing::new(
            std::env::var("AZURE_STORAGE_ACCOUNT_KEY")
                .context("--azure-account needs the account's key in AZURE_STORAGE_ACCOUNT_KEY")?,
        );
        let endpoint = azure_endpoint.clone();
        return Ok(Arc::new(firn_api::AzureSessions::new(
            env, account, &key, region, endpoint,
        )?));
    }
    // Without the feature there is nothing to be asked for.
    let _ = (env, options);
    Ok(Arc::new(NoCloud))
}

fn s3(env: &Env, options: &Serve) -> anyhow::Result<Arc<dyn CloudSessions>> {
    #[cfg(feature = "aws")]
    if let Some(role) = &options.cloud.edge_role {
        let Cloud {
            managed_buckets,
            sts_region,
            sts_endpoint,
            s3_endpoint,
            ..
        } = &options.cloud;
        let account = firn_api::AwsAccount::from_environment(env, sts_region, sts_endpoint.clone())?;
        let buckets = managed_buckets.iter().cloned().collect();
        let sessions = firn_api::StsSessions::new(account, role.clone(), buckets);
        return Ok(Arc::new(sessions.with_object_endpoint(s3_endpoint.clone())));
    }
    // Without the feature there is nothing to be asked for.
    let _ = (env, options);
    Ok(Arc::new(NoCloud))
}

fn start_log(command: &Command) -> anyhow::Result<Option<firn_telemetry::Traces>> {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into());
    let traces = match command {
        Command::Serve(serve) => serve.listening.traces()?,
        _ => None,
    };
    firn_telemetry::start_log(
        filter,
        false,
        firn_env::terminal::log_has_colours(),
        traces.as_ref(),
    );
    Ok(traces)
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = start_log(&arguments.command).and_then(|traces| {
        let runtime = tokio::runtime::Runtime::new().context("cannot start")?;
        let outcome = runtime.block_on(run(arguments.command));
        if let Some(traces) = traces {
            traces.end();
        }
        outcome
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("firn-api: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::NewSecret { file } => new_secret(&file),
        Command::Serve(options) => serve(*options).await,
        Command::Certify {
            name,
            directory,
            secret,
            trust_domain,
        } => certify(name, &directory, &secret, trust_domain),
        Command::Openapi => Ok(std::io::stdout().write_all(openapi::text().as_bytes())?),
        Command::Backup { tables, file } => tables::backup(&tables, &file).await,
        Command::MoveRoots(tables) => tables::move_roots(&tables).await,
        Command::Roster { table, file } => tables::roster(&table, &file).await,
        Command::Restore { tables, since, file } => tables::restore(&tables, &since, &file).await,
        Command::Audit(Audit::Verify { file, head }) => verify_audit(&file, head.as_deref()),
        Command::Manual(manual) => Ok(manual.run(Arguments::command())?),
    }
}

fn env(directory: &Path) -> anyhow::Result<Env> {
    firn_env::real(directory).with_context(|| directory.display().to_string())
}

fn private_file(path: &Path) -> anyhow::Result<File> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .with_context(|| path.display().to_string())
}

fn new_secret(path: &Path) -> anyhow::Result<()> {
    let bytes = Zeroizing::new(env(Path::new("/"))?.random_bytes::<32>());
    let mut file = private_file(path)?;
    file.write_all(&*bytes)?;
    file.sync_all()?;
    Ok(())
}

fn certify(name: String, directory: &Path, secret: &Path, trust_domain: String) -> anyhow::Result<()> {
    let master = read_secret(secret)?;
    let env = env(Path::new("/"))?;
    let authority = master.authority(&trust_domain)?;
    let identity = PeerIdentity {
        trust_domain,
        kind: PeerKind::Service(name),
    };
    let key = SigningKey::from_seed(env.random_bytes());
    let request = certificate_request(&key, &identity);
    let now = UnixTime::from_wall(env.wall());
    let mut entropy = |bytes: &mut [u8]| {
        for chunk in bytes.chunks_mut(32) {
            let length = chunk.len();
            chunk.copy_from_slice(&env.random_bytes::<32>()[..length]);
        }
    };
    let issued = authority.issue(&request, &identity, &[], now, &mut entropy)?;
    fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    for (file, label, bytes) in [
        ("key.pem", "PRIVATE KEY", &**key.to_pkcs8()),
        ("certificate.pem", "CERTIFICATE", &*issued.certificate),
        ("authority.pem", "CERTIFICATE", &**authority.certificate()),
    ] {
        let path = directory.join(file);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| path.display().to_string());
            }
            Ok(()) | Err(_) => {}
        }
        let mut file = private_file(&path)?;
        file.write_all(pem(label, bytes).as_bytes())?;
        file.sync_all()?;
    }
    println!("{identity} until {}", issued.expires);
    Ok(())
}

fn read_secret(path: &Path) -> anyhow::Result<MasterSecret> {
    let bytes = Zeroizing::new(fs::read(path).with_context(|| path.display().to_string())?);
    let bytes: &[u8; 32] = bytes
        .as_slice()
        .try_into()
        .with_context(|| format!("{} is not a master secret of 32 bytes", path.display()))?;
    Ok(MasterSecret::new(bytes))
}

async fn serve(options: Serve) -> anyhow::Result<()> {
    fs::create_dir_all(&options.state).with_context(|| options.state.display().to_string())?;
    let env = env(&options.state)?;
    if let (Some(cluster), Some(own)) = (&options.cluster, &options.cluster_table) {
        options.tables.require_other_than(own, cluster)?;
    }
    let table = options.tables.open(&env).await?;
    firn_api::require_settled(&table).await?;
    options.tables.require_known(&table).await?;
    let placement: Arc<dyn DiskPlacement> = match (&options.cluster, &options.cluster_table) {
        (Some(name), Some(own)) => {
            let own = tables::open_table(&env, own).await?;
            Arc::new(Fleet::new(Placement::new(env.clone(), own, name)?))
        }
        _ => Arc::new(NoFleet),
    };
    let app = App::new(Parts {
        table,
        master: read_secret(&options.secret)?,
        policy: Arc::new(RegoPolicy::compile(POLICY)?),
        mailer: Arc::new(FileMailer::new(&env)),
        placement,
        pool: pool(&env, &options)?,
        fleet_tenant: options.fleet_tenant,
        cloud: cloud(&env, &options)?,
        issuer: options.issuer,
        machine_server: options.machine_server,
        trust_domain: options.trust_domain,
        token_generation: options.token_generation,
        disk_capability_seconds: options.disk_capability_seconds,
        spread_ledger: options.spread_ledger,
        limits: options.limits.limits(),
        env,
    })?;
    let listening = options.listening.listening();
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let stop = async move {
        let interrupt = std::pin::pin!(tokio::signal::ctrl_c());
        let terminated = std::pin::pin!(terminate.recv());
        futures::future::select(interrupt, terminated).await;
    };
    firn_api::serve(
        &app,
        &listening,
        |bound| {
            println!("listening on {}", bound.tenants);
            if let Some(address) = bound.internal {
                println!("internal on {address}");
            }
            if let Some(address) = bound.metrics {
                println!("metrics on {address}");
            }
        },
        stop,
    )
    .await?;
    Ok(())
}

fn verify_audit(path: &Path, head: Option<&str>) -> anyhow::Result<()> {
    let file = BufReader::new(File::open(path).with_context(|| path.display().to_string())?);
    let entries = file
        .lines()
        .map(|line| Ok(serde_json::from_str(&line?)?))
        .collect::<anyhow::Result<Vec<AuditEntry>>>()?;
    let (sequence, hash) = verify_chain(&entries).map_err(anyhow::Error::msg)?;
    if head.is_some_and(|head| head != hash) {
        bail!("the chain ends with {hash}, not with the given head: entries were removed or rewritten");
    }
    println!("{sequence} entries, unbroken; the last hash is {hash}");
    Ok(())
}
