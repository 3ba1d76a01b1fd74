//! Every error of a verb has the number that verbs would give, as the field cases want it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use driver_shim::backend::{JoinError, OpenError, Unreachable};
use driver_shim::bridge::BridgeError;
use driver_shim::oob::OobError;
use driver_shim::stat::StatError;
use driver_shim::{AttachError, ConnectError};
use qp::state::{ModifyError, QpState, QpType};
use qp::{
    CreateError, DestroyError, McastError, ModifyQpError, ModifySrqError, MrError, PostError, QpCap,
    ResizeCqError,
};
use wire::{Gid, LKey, Mtu, RKey, VirtAddr};

const EPERM: i32 = 1;
const EBUSY: i32 = 16;
const ENODEV: i32 = 19;
const ENOSPC: i32 = 28;
const EINVAL: i32 = 22;
const ENOMEM: i32 = 12;
const ENOTSOCK: i32 = 88;
const EOPNOTSUPP: i32 = 95;
const EADDRINUSE: i32 = 98;
const EADDRNOTAVAIL: i32 = 99;
const ENETUNREACH: i32 = 101;
const EHOSTUNREACH: i32 = 113;
const ETIMEDOUT: i32 = 110;
const EPROTO: i32 = 71;
const ECONNRESET: i32 = 104;

/// An error, the number it has and the one it should have.
type Case = (String, i32, i32);

fn case(error: &impl std::error::Error, found: i32, right: i32) -> Case {
    (format!("{error:?}: {error}"), found, right)
}

/// The names of the error enums that the tests below look at, each with the cases of it.
fn all() -> Vec<(&'static str, Vec<Case>)> {
    let modify = |error: ModifyError, right| case(&error, error.errno(), right);
    let (qp_type, from, to) = (QpType::Rc, QpState::Rts, QpState::Rts);
    let mask = qp::AttrMask::TIMEOUT;
    // F16, F31: a value too large; F33: an attribute too many; F38: the path MTU; all EINVAL.
    let modify = vec![
        modify(ModifyError::TooLarge { attribute: "rnr_retry", value: 8, max: 7 }, EINVAL),
        modify(ModifyError::NotAllowed { qp_type, from, to, extra: mask }, EINVAL),
        modify(ModifyError::Missing { qp_type, from, to, missing: mask }, EINVAL),
        modify(ModifyError::NoTransition { qp_type, from, to }, EINVAL),
        modify(ModifyError::WrongCurState { given: from, actual: QpState::Sqd }, EINVAL),
        modify(ModifyError::MtuTooLarge { path_mtu: Mtu::B4096, active_mtu: Mtu::B1024 }, EINVAL),
        modify(ModifyError::NoSuchPort { port: 2, ports: 1 }, EINVAL),
    ];
    let modify_qp = |error: ModifyQpError, right| case(&error, error.errno(), right);
    // F39: an empty entry of the GID table, and addresses that do not go together.
    let modify_qp = vec![
        modify_qp(ModifyQpError::NoSuchQp, EINVAL),
        modify_qp(ModifyQpError::EmptyGid(3), EINVAL),
        modify_qp(ModifyQpError::NoDestination, EINVAL),
        modify_qp(ModifyQpError::Family { sgid: Gid::ZERO, dgid: Gid::ZERO }, EINVAL),
        modify_qp(ModifyError::TooLarge { attribute: "timeout", value: 32, max: 31 }.into(), EINVAL),
    ];
    let create = |error: CreateError, right| case(&error, error.errno(), right);
    // F26: sizes above the largest are EINVAL.
    let create = vec![
        create(CreateError::Cap { max: QpCap::MAX }, EINVAL),
        create(CreateError::NoPd, EINVAL),
        create(CreateError::NoCq, EINVAL),
        create(CreateError::CqDepth { given: 0, max: 1 }, EINVAL),
        create(CreateError::GsiTaken, EINVAL),
        create(CreateError::TableFull, ENOMEM),
        create(CreateError::NoSrq, EINVAL),
        create(CreateError::SrqSize { max_wr: 1, max_sge: 1 }, EINVAL),
        create(CreateError::SrqTableFull, ENOMEM),
        create(CreateError::NoXrcd, EINVAL),
        create(CreateError::XrcSrq, EINVAL),
        create(CreateError::XrcReceives, EINVAL),
    ];
    let resize = |error: ResizeCqError, right| case(&error, error.errno(), right);
    let resize = vec![
        resize(ResizeCqError::NoSuchCq, EINVAL),
        resize(ResizeCqError::Depth { given: 0, max: 1 }, EINVAL),
        resize(ResizeCqError::TooSmall { given: 1, waiting: 2 }, EINVAL),
    ];
    let mcast = |error: McastError, right| case(&error, error.errno(), right);
    let mcast = vec![
        mcast(McastError::NoSuchQp, EINVAL),
        mcast(McastError::QpType(QpType::Rc), EINVAL),
        mcast(McastError::NotAGroup(Gid::ZERO), EINVAL),
        mcast(McastError::NotAttached(Gid::ZERO), EINVAL),
    ];
    let srq = |error: ModifySrqError, right| case(&error, error.errno(), right);
    let srq = vec![
        srq(ModifySrqError::NoSuchSrq, EINVAL),
        srq(ModifySrqError::Size { given: 0, max: 1 }, EINVAL),
        srq(ModifySrqError::BelowPosted { given: 1, posted: 2 }, EINVAL),
        srq(ModifySrqError::Limit { limit: 2, max_wr: 1 }, EINVAL),
    ];
    let destroy = |error: DestroyError, right| case(&error, error.errno(), right);
    let destroy = vec![destroy(DestroyError::NoSuchObject, EINVAL), destroy(DestroyError::Busy, EBUSY)];
    let mr = |error: MrError, right| case(&error, error.errno(), right);
    // F34.
    let mr = vec![
        mr(MrError::RemoteWithoutLocal, EINVAL),
        mr(MrError::UnknownAccess(1 << 30), EINVAL),
        mr(MrError::NoPd, EINVAL),
        mr(MrError::NoSuchKey(LKey::new(1)), EINVAL),
        mr(MrError::OutOfBounds { offset: 1, end: 2, length: 1 }, EINVAL),
        mr(MrError::TableFull, ENOMEM),
        mr(MrError::NoMemory(1), ENOMEM),
        mr(MrError::NoSuchWindow(RKey::new(1)), EINVAL),
        mr(MrError::WindowsBound(2), EBUSY),
        mr(MrError::FastRegistered, EINVAL),
        mr(MrError::Wraps { iova: VirtAddr::new(u64::MAX), length: 2 }, EINVAL),
    ];
    let post = |error: PostError, right| case(&error, error.errno(), right);
    // F24: a full queue is ENOMEM, all else EINVAL; F35: so is a message that is too long.
    let post = vec![
        post(PostError::QueueFull(3), ENOMEM),
        post(PostError::TooManySges { given: 5, max: 4 }, EINVAL),
        post(PostError::TooMuchInline { given: 5, max: 4 }, EINVAL),
        post(PostError::NotInline, EINVAL),
        post(PostError::AtomicLength(4), EINVAL),
        post(PostError::TooLong(1 << 32), EINVAL),
        post(PostError::DatagramTooLong { given: 1025, max: 1024 }, EINVAL),
        post(PostError::WrongType(QpType::Ud), EINVAL),
        post(PostError::State(QpState::Init), EINVAL),
        post(PostError::NoSuchQp, EINVAL),
        post(PostError::NoAddress, EINVAL),
        post(PostError::NoSuchAh, EINVAL),
        post(PostError::NoReadDepth, EINVAL),
        // F27.
        post(PostError::SharedReceives, EINVAL),
        post(PostError::NoSuchSrq, EINVAL),
        post(PostError::NoRemoteSrq, EINVAL),
    ];
    let connect = |error: ConnectError, right| case(&error, error.errno(), right);
    let unreachable = |reason| ConnectError::Unreachable { gid: Gid::ZERO, reason };
    // F39: an address that cannot be resolved is a clear error.
    let connect = vec![
        connect(unreachable(Unreachable::NoAnswer), ETIMEDOUT),
        connect(unreachable(Unreachable::NoRoute), ENETUNREACH),
        connect(unreachable(Unreachable::NoSource), EADDRNOTAVAIL),
        connect(ModifyQpError::NoDestination.into(), EINVAL),
    ];
    let address = [127, 0, 0, 1].into();
    let open = |error: OpenError, right| case(&error, error.errno(), right);
    let open = vec![
        open(OpenError::NoPermission { backend: "raw", needs: "CAP_NET_RAW" }, EPERM),
        open(OpenError::NoSuchAddress { address }, EADDRNOTAVAIL),
        open(OpenError::NoHostAddress { address }, EADDRNOTAVAIL),
        open(OpenError::NoSuchInterface { name: "x".into(), known: Vec::new() }, ENODEV),
        open(OpenError::Interface { name: "x".into(), reason: "is down" }, EINVAL),
        open(OpenError::QueueInUse { name: "x".into(), queue: 0 }, EBUSY),
        open(OpenError::NoSuchQueue { name: "x".into(), queue: 1 }, EINVAL),
        open(OpenError::ProgramInUse { name: "x".into() }, EBUSY),
        open(OpenError::NoFreeAddress, EADDRINUSE),
        open(OpenError::NoFreeAddressOnBridge { path: "x".into() }, EADDRINUSE),
        open(OpenError::BridgeFull { path: "x".into(), many: "enough" }, ENOSPC),
        open(OpenError::AddressTaken { address }, EADDRINUSE),
        open(OpenError::SelfTest { address, reason: "of a filter" }, EOPNOTSUPP),
        open(OpenError::Io { what: "bind", source: io::Error::from_raw_os_error(EBUSY) }, EBUSY),
    ];
    let join = |error: JoinError, right| case(&error, error.errno(), right);
    let refused = || io::Error::from_raw_os_error(EBUSY);
    let no_permission = OpenError::NoPermission { backend: "raw", needs: "CAP_NET_RAW" };
    let join = vec![
        join(JoinError::Unsupported { backend: "x" }, EOPNOTSUPP),
        join(JoinError::NoAddress { group: address }, EADDRNOTAVAIL),
        join(JoinError::Open { group: address, source: no_permission }, EPERM),
        join(JoinError::Membership { group: address, source: refused() }, EBUSY),
    ];
    let attach = |error: AttachError, right| case(&error, error.errno(), right);
    let attach = vec![
        attach(McastError::NoSuchQp.into(), EINVAL),
        attach(JoinError::Unsupported { backend: "x" }.into(), EOPNOTSUPP),
    ];
    let oob = |error: OobError, right| case(&error, error.errno(), right);
    let nothing = || io::Error::other("nothing");
    let oob = vec![
        oob(OobError::Resolve { host: "x".into(), source: nothing() }, EHOSTUNREACH),
        oob(OobError::Listen { port: 1, source: io::Error::from_raw_os_error(EPERM) }, EPERM),
        oob(OobError::Closed(nothing()), ECONNRESET),
        oob(OobError::Garbled("x".into()), EPROTO),
    ];
    let path = || "x".into();
    let bridge = |error: BridgeError, right| case(&error, error.errno(), right);
    let bridge = vec![
        bridge(BridgeError::PathInUse { path: path() }, EADDRINUSE),
        bridge(BridgeError::OtherSocket { path: path() }, EADDRINUSE),
        bridge(BridgeError::NoSocket { path: path() }, ENOTSOCK),
        bridge(BridgeError::Path { path: path(), source: refused() }, EBUSY),
        bridge(BridgeError::SameInterface { name: "x".into() }, EINVAL),
        bridge(BridgeError::Io { what: "wait", source: refused() }, EBUSY),
    ];
    let stat = |error: StatError, right| case(&error, error.errno(), right);
    let stat = vec![
        stat(StatError::NoSuchDevice { name: "x".into(), running: Vec::new() }, ENODEV),
        stat(StatError::Directory(refused()), EBUSY),
        stat(StatError::NoAnswer { name: "x".into(), source: refused() }, EBUSY),
    ];
    vec![
        ("ModifyError", modify),
        ("ModifyQpError", modify_qp),
        ("CreateError", create),
        ("DestroyError", destroy),
        ("ResizeCqError", resize),
        ("McastError", mcast),
        ("AttachError", attach),
        ("JoinError", join),
        ("ModifySrqError", srq),
        ("MrError", mr),
        ("PostError", post),
        ("ConnectError", connect),
        ("OpenError", open),
        ("OobError", oob),
        ("BridgeError", bridge),
        ("StatError", stat),
    ]
}

/// F16, F24, F26, F31, F33 to F35, F38, F39.
#[test]
fn errors_have_the_numbers_of_verbs() {
    for (text, found, right) in all().into_iter().flat_map(|(_, cases)| cases) {
        assert_eq!(found, right, "{text}");
    }
}

/// No enum of errors is forgotten.
#[test]
fn every_enum_of_errors_is_looked_at() {
    let mut found = BTreeSet::new();
    for folder in ["qp/src", "driver-shim/src"] {
        enums(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder), &mut found);
    }
    let listed = all().into_iter().map(|(name, _)| name.to_owned()).collect();
    assert_eq!(found, listed);
}

/// Names of the public enums in the files of `folder` that end in `Error`.
fn enums(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            enums(&path, found);
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            for line in fs::read_to_string(&path).unwrap().lines() {
                let name =
                    line.trim().strip_prefix("pub enum ").and_then(|rest| rest.split([' ', '<']).next());
                found.extend(name.filter(|name| name.ends_with("Error")).map(str::to_owned));
            }
        }
    }
}
