use proptest::prelude::*;

use super::*;
use crate::syndrome::NakCode;

fn bytes(header: impl Into<Ext>) -> Vec<u8> {
    header.into().as_bytes().to_vec()
}

#[test]
fn every_field_has_its_place() {
    let va = VirtAddr::new(0x0102_0304_0506_0708);
    let rkey = RKey::new(0x1112_1314);
    assert_eq!(
        bytes(Reth::new(va, rkey, 0x2122_2324)),
        [1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24]
    );
    // Rule R-WIR-26: swap or add, then compare.
    let atomic = AtomicEth::new(va, rkey, 0x3132_3334_3536_3738, 0x4142_4344_4546_4748);
    assert_eq!(
        bytes(atomic),
        [
            1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x38,
            0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48
        ]
    );
    let nak = Syndrome::Nak(NakCode::RemoteAccessError);
    assert_eq!(bytes(Aeth::new(nak, Msn::new(0x01_0203))), [0x62, 1, 2, 3]);
    assert_eq!(bytes(AtomicAckEth::new(0x0102_0304_0506_0708)), [1, 2, 3, 4, 5, 6, 7, 8]);
    // Rule R-WIR-25: opaque bytes.
    assert_eq!(bytes(ImmDt::new([4, 3, 2, 1])), [4, 3, 2, 1]);
    assert_eq!(bytes(Ieth::new(rkey)), [0x11, 0x12, 0x13, 0x14]);
    assert_eq!(bytes(Deth::new(QKey::new(0x8001_0000), Qpn::new(0x01_0203))), [0x80, 1, 0, 0, 0, 1, 2, 3]);
    assert_eq!(bytes(Xrceth::new(Srqn::new(0x01_0203))), [0, 1, 2, 3]);
    assert_eq!(bytes(Feth::new(Feth::GLOBAL_VISIBILITY | Feth::PERSISTENCE, false)), [0, 0, 0, 0x03]);
    assert_eq!(bytes(Feth::new(Feth::PERSISTENCE, true)), [0, 0, 0, 0x12]);
    assert_eq!(bytes(CnpReserved::ZERO), [0; 16]);
}

#[test]
fn fields_read_back() {
    let va = VirtAddr::new(u64::MAX - 1);
    let rkey = RKey::new(0xDEAD_BEEF);
    let reth = Reth::new(va, rkey, u32::MAX);
    assert_eq!((reth.va(), reth.rkey(), reth.dma_len()), (va, rkey, u32::MAX));
    let atomic = AtomicEth::new(va, rkey, 5, 6);
    assert_eq!((atomic.va(), atomic.rkey(), atomic.swap_or_add(), atomic.compare()), (va, rkey, 5, 6));
    let aeth = Aeth::new(Syndrome::ACK, Msn::new(0xFF_FFFF));
    assert_eq!((aeth.syndrome(), aeth.msn()), (Syndrome::ACK, Msn::new(0xFF_FFFF)));
    assert_eq!(AtomicAckEth::new(7).original(), 7);
    assert_eq!(ImmDt::new([1, 2, 3, 4]).bytes(), [1, 2, 3, 4]);
    assert_eq!(Ieth::new(rkey).rkey(), rkey);
    let deth = Deth::new(QKey::new(9), Qpn::GSI);
    assert_eq!((deth.qkey(), deth.src_qp(), deth.reserved()), (QKey::new(9), Qpn::GSI, 0));
    let xrceth = Xrceth::new(Srqn::new(10));
    assert_eq!((xrceth.srqn(), xrceth.reserved()), (Srqn::new(10), 0));
    let feth = Feth::new(Feth::PERSISTENCE, true);
    assert_eq!((feth.placement(), feth.selectivity(), feth.reserved()), (2, 1, 0));
}

proptest! {
    #[test]
    fn any_bytes_read_and_write_back(raw in any::<[u8; 32]>(), len in 0_usize..=32) {
        use ExtHeader as H;
        let kinds = [
            H::Xrceth, H::Deth, H::Feth, H::Reth, H::AtomicEth, H::Aeth, H::AtomicAckEth, H::ImmDt, H::Ieth,
            H::CnpReserved,
        ];
        for kind in kinds {
            match Ext::read(kind, &raw[..len]) {
                Some(header) => {
                    prop_assert_eq!(header.kind(), kind);
                    prop_assert_eq!(header.as_bytes(), &raw[..kind.size()]);
                }
                None => prop_assert!(len < kind.size()),
            }
        }
    }
}
