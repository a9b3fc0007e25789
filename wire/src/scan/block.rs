//! Blocks of bytes compared at once, which is what makes a skipped value cheap.

/// Which bytes of a block are which, the first byte in the lowest bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Marks {
    pub(super) quotes: u64,
    pub(super) backslashes: u64,
    /// `{` and `[`.
    pub(super) opens: u64,
    /// `}` and `]`.
    pub(super) closes: u64,
}

/// The marks of 64 bytes.
#[inline]
pub(super) fn marks(block: &[u8; 64]) -> Marks {
    let mut marks = Marks {
        quotes: 0,
        backslashes: 0,
        opens: 0,
        closes: 0,
    };
    let (lanes, _) = block.as_chunks::<16>();
    for (position, lane) in lanes.iter().enumerate() {
        let shift = position * 16;
        let lane = Lane::new(lane);
        // The two kinds of bracket differ in one bit, which letters in lower case have too.
        let folded = lane.without(0x20);
        marks.quotes |= u64::from(lane.equal(b'"')) << shift;
        marks.backslashes |= u64::from(lane.equal(b'\\')) << shift;
        marks.opens |= u64::from(folded.equal(b'[')) << shift;
        marks.closes |= u64::from(folded.equal(b']')) << shift;
    }
    marks
}

/// Position of the first quote or backslash in 16 bytes; 16 where there is none.
#[inline]
pub(super) fn first_quote_or_backslash(block: &[u8; 16]) -> usize {
    let lane = Lane::new(block);
    let found = lane.equal(b'"') | lane.equal(b'\\');
    (u32::from(found) | 1 << 16).trailing_zeros() as usize
}

/// Position of the first byte in 16 that ends a number or word; 16 where there is none.
#[inline]
pub(super) fn first_end_of_literal(block: &[u8; 16]) -> usize {
    let lane = Lane::new(block);
    let folded = lane.without(0x20);
    let brackets = folded.equal(b'[') | folded.equal(b']');
    let found = brackets | lane.equal(b',') | lane.equal(b':') | lane.equal(b'"') | lane.at_most(b' ');
    (u32::from(found) | 1 << 16).trailing_zeros() as usize
}

#[cfg(target_arch = "x86_64")]
use sse2::Lane;

#[cfg(not(target_arch = "x86_64"))]
use plain::Lane;

#[cfg(target_arch = "x86_64")]
#[expect(
    unsafe_code,
    reason = "intrinsics of SSE2, which every x86_64 processor has; none reads memory"
)]
mod sse2 {
    use std::arch::x86_64::{
        __m128i, _mm_andnot_si128, _mm_cmpeq_epi8, _mm_min_epu8, _mm_movemask_epi8, _mm_set_epi64x,
        _mm_set1_epi8,
    };

    /// 16 bytes in a register.
    #[derive(Clone, Copy)]
    pub(super) struct Lane(__m128i);

    impl Lane {
        #[inline]
        pub(super) fn new(bytes: &[u8; 16]) -> Self {
            let all = u128::from_le_bytes(*bytes);
            // SAFETY: SSE2 is part of x86_64.
            Self(unsafe { _mm_set_epi64x((all >> 64) as i64, all as i64) })
        }

        /// The bytes with some bits cleared.
        #[inline]
        pub(super) fn without(self, bits: u8) -> Self {
            // SAFETY: SSE2 is part of x86_64.
            Self(unsafe { _mm_andnot_si128(_mm_set1_epi8(bits as i8), self.0) })
        }

        /// A bit for each byte that equals this one.
        #[inline]
        pub(super) fn equal(self, byte: u8) -> u16 {
            // SAFETY: SSE2 is part of x86_64.
            unsafe { _mm_movemask_epi8(_mm_cmpeq_epi8(self.0, _mm_set1_epi8(byte as i8))) as u16 }
        }

        /// A bit for each byte that is this one or less.
        #[inline]
        pub(super) fn at_most(self, byte: u8) -> u16 {
            // SAFETY: SSE2 is part of x86_64.
            unsafe {
                let least = _mm_min_epu8(self.0, _mm_set1_epi8(byte as i8));
                _mm_movemask_epi8(_mm_cmpeq_epi8(self.0, least)) as u16
            }
        }
    }
}

#[cfg(any(not(target_arch = "x86_64"), test))]
mod plain {
    /// 16 bytes, one by one.
    #[derive(Clone, Copy)]
    pub(super) struct Lane([u8; 16]);

    impl Lane {
        #[inline]
        pub(super) fn new(bytes: &[u8; 16]) -> Self {
            Self(*bytes)
        }

        /// The bytes with some bits cleared.
        #[inline]
        pub(super) fn without(self, bits: u8) -> Self {
            Self(self.0.map(|byte| byte & !bits))
        }

        /// A bit for each byte that equals this one.
        #[inline]
        pub(super) fn equal(self, byte: u8) -> u16 {
            self.mask(|found| found == byte)
        }

        /// A bit for each byte that is this one or less.
        #[inline]
        pub(super) fn at_most(self, byte: u8) -> u16 {
            self.mask(|found| found <= byte)
        }

        #[inline]
        fn mask(self, fits: impl Fn(u8) -> bool) -> u16 {
            let bits = self.0.iter().enumerate();
            bits.fold(0, |mask, (position, byte)| {
                mask | u16::from(fits(*byte)) << position
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Lane, plain};

    #[test]
    fn lanes_in_registers_and_one_by_one_agree_on_every_byte() {
        for start in (0..=255_u8).step_by(16) {
            let bytes: [u8; 16] = std::array::from_fn(|offset| start + offset as u8);
            let (one, other) = (Lane::new(&bytes), plain::Lane::new(&bytes));
            for byte in 0..=255 {
                assert_eq!(one.equal(byte), other.equal(byte));
                assert_eq!(one.at_most(byte), other.at_most(byte));
                assert_eq!(one.without(byte).equal(0), other.without(byte).equal(0));
            }
        }
    }

    #[test]
    fn marks_are_those_of_each_byte() {
        let text = br#"{"a":[1,"\"}]"],"b":{}} and sixty-four bytes in all, [] {} "\" !!"#;
        let block: [u8; 64] = text[..64].try_into().unwrap();
        let marks = super::marks(&block);
        for (position, byte) in block.iter().enumerate() {
            let bit = |mask: u64| mask >> position & 1 == 1;
            assert_eq!(bit(marks.quotes), *byte == b'"');
            assert_eq!(bit(marks.backslashes), *byte == b'\\');
            assert_eq!(bit(marks.opens), matches!(byte, b'{' | b'['));
            assert_eq!(bit(marks.closes), matches!(byte, b'}' | b']'));
        }
    }
}
