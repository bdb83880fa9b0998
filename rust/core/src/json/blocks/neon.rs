//! Classification with the instructions that every 64-bit ARM processor has.

use super::{Blocks, ESCAPE_LETTERS, EscapeMasks, IntegerMasks, LongMasks, ShortMasks, StringMasks};
use core::arch::aarch64::{
    uint8x16_t, vandq_u8, vceqq_u8, vcleq_u8, vcltq_u8, vdupq_n_u8, vgetq_lane_u32, vgetq_lane_u64, vld1q_u8,
    vmaxvq_u8, vorrq_u8, vpaddq_u8, vreinterpretq_u32_u8, vreinterpretq_u64_u8, vsubq_u8,
};

/// NEON is part of the base target.
#[derive(Clone, Copy)]
pub(super) struct Neon;

/// Sixteen bytes for each number of the array.
type Vectors<const N: usize> = [uint8x16_t; N];

#[inline]
#[target_feature(enable = "neon")]
fn load(bytes: &[u8; 16]) -> uint8x16_t {
    // SAFETY: the reference is to 16 readable bytes, and the load asks for no alignment.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
fn load64(block: &[u8; 64]) -> Vectors<4> {
    let (chunks, _) = block.as_chunks::<16>();
    match chunks {
        [a, b, c, d] => [load(a), load(b), load(c), load(d)],
        _ => [vdupq_n_u8(0); 4],
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn load32(block: &[u8; 32]) -> Vectors<2> {
    let (chunks, _) = block.as_chunks::<16>();
    match chunks {
        [a, b] => [load(a), load(b)],
        _ => [vdupq_n_u8(0); 2],
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn equal(v: uint8x16_t, byte: u8) -> uint8x16_t {
    vceqq_u8(v, vdupq_n_u8(byte))
}

#[inline]
#[target_feature(enable = "neon")]
fn is_special(v: uint8x16_t) -> uint8x16_t {
    vorrq_u8(
        vorrq_u8(equal(v, b'"'), equal(v, b'\\')),
        vcltq_u8(v, vdupq_n_u8(0x20)),
    )
}

/// Keeps of each byte, which is 0x00 or 0xff, the bit of its place among eight. Sums of eight neighbours are then
/// their mask.
#[inline]
#[target_feature(enable = "neon")]
fn places(found: uint8x16_t) -> uint8x16_t {
    vandq_u8(
        found,
        load(&[1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128]),
    )
}

#[inline]
#[target_feature(enable = "neon")]
fn mask64([a, b, c, d]: Vectors<4>) -> u64 {
    let halves = vpaddq_u8(vpaddq_u8(places(a), places(b)), vpaddq_u8(places(c), places(d)));
    vgetq_lane_u64::<0>(vreinterpretq_u64_u8(vpaddq_u8(halves, halves)))
}

#[inline]
#[target_feature(enable = "neon")]
fn mask32([a, b]: Vectors<2>) -> u32 {
    let pairs = vpaddq_u8(places(a), places(b));
    let halves = vpaddq_u8(pairs, pairs);
    vgetq_lane_u32::<0>(vreinterpretq_u32_u8(vpaddq_u8(halves, halves)))
}

#[inline]
#[target_feature(enable = "neon")]
fn mask_of(v: Vectors<4>, byte: u8) -> u64 {
    let [a, b, c, d] = v;
    mask64([equal(a, byte), equal(b, byte), equal(c, byte), equal(d, byte)])
}

#[inline]
#[target_feature(enable = "neon")]
fn any_high([a, b, c, d]: Vectors<4>) -> bool {
    vmaxvq_u8(vorrq_u8(vorrq_u8(a, b), vorrq_u8(c, d))) >= 0x80
}

#[inline]
#[target_feature(enable = "neon")]
fn strings(block: &[u8; 64]) -> StringMasks {
    let v = load64(block);
    let space = vdupq_n_u8(0x20);
    let [a, b, c, d] = v;
    StringMasks {
        quote: mask_of(v, b'"'),
        backslash: mask_of(v, b'\\'),
        control: mask64([
            vcltq_u8(a, space),
            vcltq_u8(b, space),
            vcltq_u8(c, space),
            vcltq_u8(d, space),
        ]),
        comma: mask_of(v, b','),
        high: any_high(v),
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn is_digit(v: uint8x16_t) -> uint8x16_t {
    vcleq_u8(vsubq_u8(v, vdupq_n_u8(b'0')), vdupq_n_u8(9))
}

#[inline]
#[target_feature(enable = "neon")]
fn integers(block: &[u8; 64]) -> IntegerMasks {
    let v = load64(block);
    let [a, b, c, d] = v;
    IntegerMasks {
        digit: mask64([is_digit(a), is_digit(b), is_digit(c), is_digit(d)]),
        zero: mask_of(v, b'0'),
        comma: mask_of(v, b','),
        minus: mask_of(v, b'-'),
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn short(block: &[u8; 32]) -> ShortMasks {
    let [a, b] = load32(block);
    let top = vdupq_n_u8(0x7f);
    ShortMasks {
        special: mask32([is_special(a), is_special(b)]),
        high: mask32([vcltq_u8(top, a), vcltq_u8(top, b)]),
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn long(block: &[u8; 64]) -> LongMasks {
    let v = load64(block);
    let [a, b, c, d] = v;
    LongMasks {
        special: mask64([is_special(a), is_special(b), is_special(c), is_special(d)]),
        high: any_high(v),
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn is_letter(v: uint8x16_t) -> uint8x16_t {
    let mut found = equal(v, b'u');
    for letter in ESCAPE_LETTERS {
        found = vorrq_u8(found, equal(v, letter));
    }
    found
}

#[inline]
#[target_feature(enable = "neon")]
fn escapes(block: &[u8; 64]) -> EscapeMasks {
    let v = load64(block);
    let [a, b, c, d] = v;
    EscapeMasks {
        letter: mask64([is_letter(a), is_letter(b), is_letter(c), is_letter(d)]),
        unicode: mask_of(v, b'u'),
        slash: mask_of(v, b'/'),
    }
}

impl Blocks for Neon {
    #[inline(always)]
    fn strings(self, block: &[u8; 64]) -> StringMasks {
        // SAFETY: the feature is part of every 64-bit ARM target that is built for.
        unsafe { strings(block) }
    }

    #[inline(always)]
    fn integers(self, block: &[u8; 64]) -> IntegerMasks {
        // SAFETY: the feature is part of every 64-bit ARM target that is built for.
        unsafe { integers(block) }
    }

    #[inline(always)]
    fn short(self, block: &[u8; 32]) -> ShortMasks {
        // SAFETY: the feature is part of every 64-bit ARM target that is built for.
        unsafe { short(block) }
    }

    #[inline(always)]
    fn long(self, block: &[u8; 64]) -> LongMasks {
        // SAFETY: the feature is part of every 64-bit ARM target that is built for.
        unsafe { long(block) }
    }

    #[inline(always)]
    fn escapes(self, block: &[u8; 64]) -> EscapeMasks {
        // SAFETY: the feature is part of every 64-bit ARM target that is built for.
        unsafe { escapes(block) }
    }
}
