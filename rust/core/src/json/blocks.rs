//! Classification of blocks of bytes into bit masks: the module with `unsafe`, behind a safe door.
//!
//! A [`Task`] is generic over [`Blocks`]; [`dispatch`] runs it with the widest instructions that the processor has.
//! Bit *i* of a mask speaks about byte *i* of the block. The benchmark `bench_check` shows what it pays.
#![allow(
    unsafe_code,
    reason = "SIMD intrinsics; every use is guarded by a token or by the base target"
)]

#[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;

/// Masks that find the end of strings.
#[derive(Clone, Copy)]
pub(crate) struct StringMasks {
    pub(crate) quote: u64,
    pub(crate) backslash: u64,
    /// Bytes below 0x20, which no JSON string holds.
    pub(crate) control: u64,
    pub(crate) comma: u64,
    /// Whether any byte is from 0x80.
    pub(crate) high: bool,
}

/// Masks that check arrays of integers.
#[derive(Clone, Copy)]
pub(crate) struct IntegerMasks {
    pub(crate) digit: u64,
    pub(crate) zero: u64,
    pub(crate) comma: u64,
    pub(crate) minus: u64,
}

/// Classification of 32 bytes for a string that may end soon.
#[derive(Clone, Copy)]
pub(crate) struct ShortMasks {
    /// Quote, backslash or control byte.
    pub(crate) special: u32,
    /// Bytes from 0x80, parts of characters that are not ASCII.
    pub(crate) high: u32,
}

/// Classification of 64 bytes inside a long string.
#[derive(Clone, Copy)]
pub(crate) struct LongMasks {
    /// Quote, backslash or control byte.
    pub(crate) special: u64,
    /// Whether any byte is from 0x80.
    pub(crate) high: bool,
}

/// Classification of 64 bytes that may follow a backslash.
#[derive(Clone, Copy)]
pub(crate) struct EscapeMasks {
    /// Bytes that make an escape with a backslash before them: `"\\/bfnrtu`.
    pub(crate) letter: u64,
    /// The letter `u`, which wants four digits behind it.
    pub(crate) unicode: u64,
    /// The slash, which stands for itself.
    pub(crate) slash: u64,
}

/// A way to classify blocks. A value of an implementing type is the proof that the processor can do it.
pub(crate) trait Blocks: Copy {
    fn strings(self, block: &[u8; 64]) -> StringMasks;
    fn integers(self, block: &[u8; 64]) -> IntegerMasks;
    fn short(self, block: &[u8; 32]) -> ShortMasks;
    fn long(self, block: &[u8; 64]) -> LongMasks;
    fn escapes(self, block: &[u8; 64]) -> EscapeMasks;
}

/// The bytes that are escaped: those behind a backslash that is not escaped itself. `carry` is 1 if the first byte is
/// escaped by the block before, and is set for the block behind. Branch-free: a run of backslashes is one addition.
#[inline(always)]
pub(crate) fn escaped_bytes(backslash: u64, carry: &mut u64) -> u64 {
    const ODD: u64 = 0xaaaa_aaaa_aaaa_aaaa;
    let starts = backslash & !*carry;
    // Subtracting a run's start from the bits behind it flips the odd places of the run, to its end.
    let codes = ((starts << 1) | ODD).wrapping_sub(starts) ^ ODD;
    let escaped = codes ^ (backslash | *carry);
    *carry = (codes & backslash) >> 63;
    escaped
}

/// Work that is compiled once for each kind of [`Blocks`]. `run` must be `#[inline(always)]`.
pub(crate) trait Task {
    type Output;
    fn run<B: Blocks>(self, blocks: B) -> Self::Output;
}

/// Runs the task with the best instructions that this processor has.
#[inline]
pub(crate) fn dispatch<T: Task>(task: T) -> T::Output {
    #[cfg(target_arch = "x86_64")]
    {
        match x86::level() {
            // SAFETY: the features that the function is compiled for were found on this processor.
            x86::AVX512 => unsafe { x86::with_avx512(task) },
            // SAFETY: as above.
            x86::AVX2 => unsafe { x86::with_avx2(task) },
            _ => task.run(x86::Sse2),
        }
    }
    #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
    {
        task.run(neon::Neon)
    }
    #[cfg(not(any(
        target_arch = "x86_64",
        all(target_arch = "aarch64", target_feature = "neon", target_endian = "little")
    )))]
    task.run(Portable)
}

/// Classification in plain 64-bit arithmetic, for processors without a module of their own.
#[derive(Clone, Copy)]
#[cfg_attr(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    allow(dead_code, reason = "the tests compare it with the SIMD forms")
)]
pub(crate) struct Portable;

const ONES: u64 = 0x0101_0101_0101_0101;
const LOWS: u64 = 0x7f7f_7f7f_7f7f_7f7f;

/// Gathers the top bits of eight bytes into eight bits.
#[inline]
fn gather(tops: u64) -> u64 {
    ((tops >> 7) & ONES).wrapping_mul(0x0102_0408_1020_4080) >> 56
}

#[inline]
fn equal(word: u64, byte: u8) -> u64 {
    let x = word ^ (ONES * u64::from(byte));
    gather(!(((x & LOWS) + LOWS) | x | LOWS))
}

/// Bytes below `limit`, which is at most 0x80.
#[inline]
fn below(word: u64, limit: u8) -> u64 {
    let sum = (word & LOWS) + ONES * u64::from(0x80 - limit);
    gather(!(sum | word))
}

impl Portable {
    #[inline]
    fn words(block: &[u8]) -> impl Iterator<Item = (usize, u64)> + '_ {
        let (chunks, _) = block.as_chunks::<8>();
        chunks
            .iter()
            .enumerate()
            .map(|(i, chunk)| (8 * i, u64::from_le_bytes(*chunk)))
    }
}

impl Blocks for Portable {
    #[inline]
    fn strings(self, block: &[u8; 64]) -> StringMasks {
        let mut masks = StringMasks {
            quote: 0,
            backslash: 0,
            control: 0,
            comma: 0,
            high: false,
        };
        for (at, word) in Self::words(block) {
            masks.quote |= equal(word, b'"') << at;
            masks.backslash |= equal(word, b'\\') << at;
            masks.control |= below(word, 0x20) << at;
            masks.comma |= equal(word, b',') << at;
            masks.high |= word & !LOWS != 0;
        }
        masks
    }

    #[inline]
    fn integers(self, block: &[u8; 64]) -> IntegerMasks {
        let mut masks = IntegerMasks {
            digit: 0,
            zero: 0,
            comma: 0,
            minus: 0,
        };
        for (at, word) in Self::words(block) {
            masks.digit |= (below(word, b'9' + 1) & !below(word, b'0')) << at;
            masks.zero |= equal(word, b'0') << at;
            masks.comma |= equal(word, b',') << at;
            masks.minus |= equal(word, b'-') << at;
        }
        masks
    }

    #[inline]
    fn short(self, block: &[u8; 32]) -> ShortMasks {
        let mut masks = ShortMasks { special: 0, high: 0 };
        for (at, word) in Self::words(block) {
            let special = equal(word, b'"') | equal(word, b'\\') | below(word, 0x20);
            // A gathered mask has eight bits.
            masks.special |= (special & 0xff) as u32 * (1 << at);
            masks.high |= (gather(word) & 0xff) as u32 * (1 << at);
        }
        masks
    }

    #[inline]
    fn long(self, block: &[u8; 64]) -> LongMasks {
        let mut masks = LongMasks {
            special: 0,
            high: false,
        };
        for (at, word) in Self::words(block) {
            let special = equal(word, b'"') | equal(word, b'\\') | below(word, 0x20);
            masks.special |= special << at;
            masks.high |= word & !LOWS != 0;
        }
        masks
    }

    #[inline]
    fn escapes(self, block: &[u8; 64]) -> EscapeMasks {
        let mut masks = EscapeMasks {
            letter: 0,
            unicode: 0,
            slash: 0,
        };
        for (at, word) in Self::words(block) {
            masks.unicode |= equal(word, b'u') << at;
            masks.slash |= equal(word, b'/') << at;
            masks.letter |= ESCAPE_LETTERS
                .iter()
                .fold(0, |bits, &letter| bits | equal(word, letter))
                << at;
        }
        masks.letter |= masks.unicode;
        masks
    }
}

/// Letters of the escapes other than `u`.
const ESCAPE_LETTERS: [u8; 8] = *b"\"\\/bfnrt";

#[cfg(test)]
mod tests {
    use super::*;

    struct Classify<'a>(&'a [u8; 64]);
    type Masks = [u64; 16];

    fn classify<B: Blocks>(blocks: B, block: &[u8; 64]) -> Masks {
        let strings = blocks.strings(block);
        let integers = blocks.integers(block);
        let short = blocks.short(block[16..48].try_into().unwrap());
        let long = blocks.long(block);
        let escapes = blocks.escapes(block);
        [
            strings.quote,
            strings.backslash,
            strings.control,
            strings.comma,
            integers.digit,
            integers.zero,
            integers.comma,
            integers.minus,
            u64::from(short.special),
            u64::from(short.high),
            long.special,
            u64::from(long.high),
            escapes.letter,
            escapes.unicode,
            escapes.slash,
            u64::from(strings.high),
        ]
    }

    impl Task for Classify<'_> {
        type Output = Masks;
        #[inline(always)]
        fn run<B: Blocks>(self, blocks: B) -> Masks {
            classify(blocks, self.0)
        }
    }

    fn plain(block: &[u8; 64]) -> Masks {
        let mask = |f: fn(u8) -> bool, part: &[u8]| {
            part.iter()
                .enumerate()
                .fold(0u64, |m, (i, &b)| m | u64::from(f(b)) << i)
        };
        [
            mask(|b| b == b'"', block),
            mask(|b| b == b'\\', block),
            mask(|b| b < 0x20, block),
            mask(|b| b == b',', block),
            mask(|b| b.is_ascii_digit(), block),
            mask(|b| b == b'0', block),
            mask(|b| b == b',', block),
            mask(|b| b == b'-', block),
            mask(|b| b == b'"' || b == b'\\' || b < 0x20, &block[16..48]),
            mask(|b| b >= 0x80, &block[16..48]),
            mask(|b| b == b'"' || b == b'\\' || b < 0x20, block),
            u64::from(block.iter().any(|&b| b >= 0x80)),
            mask(|b| b"\"\\/bfnrtu".contains(&b), block),
            mask(|b| b == b'u', block),
            mask(|b| b == b'/', block),
            u64::from(block.iter().any(|&b| b >= 0x80)),
        ]
    }

    #[test]
    fn escaped_bytes_are_those_behind_an_odd_run_of_backslashes() {
        let mut state = 3u64;
        let mut carry = 0;
        let mut plain_carry = false;
        for _ in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let backslash =
                (state >> 7) & state.rotate_left(21) | if state >> 62 == 0 { u64::MAX << 40 } else { 0 };
            let mut expected = 0u64;
            for bit in 0..64 {
                expected |= u64::from(plain_carry) << bit;
                plain_carry = !plain_carry && backslash >> bit & 1 == 1;
            }
            assert_eq!(escaped_bytes(backslash, &mut carry), expected);
            assert_eq!(carry, u64::from(plain_carry));
        }
    }

    #[test]
    fn every_form_classifies_every_byte_alike() {
        let mut state = 1u64;
        for round in 0..1024u64 {
            let mut block = [0u8; 64];
            for (i, byte) in block.iter_mut().enumerate() {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *byte = u8::try_from(if round < 4 {
                    round * 64 + i as u64
                } else {
                    state >> 56
                })
                .unwrap();
            }
            let expected = plain(&block);
            assert_eq!(classify(Portable, &block), expected);
            assert_eq!(dispatch(Classify(&block)), expected);
            #[cfg(target_arch = "x86_64")]
            {
                assert_eq!(classify(x86::Sse2, &block), expected);
                if x86::has_avx2() {
                    // SAFETY: the features were just found.
                    assert_eq!(unsafe { x86::with_avx2(Classify(&block)) }, expected);
                }
            }
        }
    }
}
