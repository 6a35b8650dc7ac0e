//! Multiplies the base point of the curve P-256 in the dist build, without the table that ring has for it.
//!
//! ring keeps 151 KB of multiples of that point, to be a few dozen microseconds faster at each handshake with that curve.
//! What multiplies any other point, in constant time too, multiplies this one as well. The names are ring's own and carry
//! its version, so that another one fails to link instead of going unnoticed.

/// Four 64-bit limbs, the lowest first.
type Limbs = [u64; 4];

// In Montgomery form, as ring takes coordinates (FIPS 186-4, D.1.2.3, times 2^256 modulo the prime).
static X: Limbs = [0x79e7_30d4_18a9_143c, 0x75ba_95fc_5fed_b601, 0x79fb_732b_7762_2510, 0x1890_5f76_a537_55c6];
static Y: Limbs = [0xddf2_5357_ce95_560a, 0x8b4a_b8e4_ba19_e45c, 0xd2e8_8688_dd21_f325, 0x8571_ff18_2588_5d85];

unsafe extern "C" {
    /// `result` is the point's three Jacobian coordinates.
    #[link_name = "ring_core_0_17_14__p256_point_mul"]
    fn multiply(result: *mut [Limbs; 3], scalar: *const Limbs, x: *const Limbs, y: *const Limbs);
}

#[cfg_attr(bantam_dist, unsafe(export_name = "ring_core_0_17_14__p256_point_mul_base"))]
unsafe extern "C" fn multiply_base(result: *mut [Limbs; 3], scalar: *const Limbs) {
    // SAFETY: ring gives what it would give its own function, which takes the same of both.
    unsafe { multiply(result, scalar, &raw const X, &raw const Y) }
}

/// For what is no secret, which does not have to take the same time always.
#[cfg_attr(bantam_dist, unsafe(export_name = "ring_core_0_17_14__p256_point_mul_base_vartime"))]
#[cfg(bantam_dist)]
unsafe extern "C" fn multiply_base_in_any_time(result: *mut [Limbs; 3], scalar: *const Limbs) {
    // SAFETY: as above.
    unsafe { multiply_base(result, scalar) }
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" {
        #[link_name = "ring_core_0_17_14__p256_point_mul_base"]
        fn with_table(result: *mut [Limbs; 3], scalar: *const Limbs);
        #[link_name = "ring_core_0_17_14__p256_mul_mont"]
        fn product(result: *mut Limbs, a: *const Limbs, b: *const Limbs);
    }

    fn times(a: &Limbs, b: &Limbs) -> Limbs {
        let mut result = [0; 4];
        // SAFETY: three numbers of four limbs.
        unsafe { product(&raw mut result, a, b) };
        result
    }

    /// Whether two points are one: x1·z2² = x2·z1², and y1·z2³ = y2·z1³.
    fn same([x1, y1, z1]: &[Limbs; 3], [x2, y2, z2]: &[Limbs; 3]) -> bool {
        let (square1, square2) = (times(z1, z1), times(z2, z2));
        let (cube1, cube2) = (times(&square1, z1), times(&square2, z2));
        times(x1, &square2) == times(x2, &square1) && times(y1, &cube2) == times(y2, &cube1)
    }

    #[test]
    fn every_multiple_is_that_of_the_table() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = || {
            // xorshift64
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let order = [0xf3b9_cac2_fc63_2551, 0xbce6_faad_a717_9e84, u64::MAX, 0xffff_ffff_0000_0000_u64];
        let mut scalars: Vec<Limbs> = (1..70).map(|n| [n, 0, 0, 0]).collect();
        scalars
            .extend((0..256).map(|bit| std::array::from_fn(|limb| if bit / 64 == limb { 1 << (bit % 64) } else { 0 })));
        scalars.extend((1..70).map(|n| [order[0] - n, order[1], order[2], order[3]]));
        // Below the order, for the highest limb is.
        scalars.extend((0..500).map(|_| [next(), next(), next(), next() >> 1]));
        for scalar in scalars {
            let (mut own, mut rings) = ([[0; 4]; 3], [[0; 4]; 3]);
            // SAFETY: as ring calls them.
            unsafe {
                multiply_base(&raw mut own, &raw const scalar);
                with_table(&raw mut rings, &raw const scalar);
            }
            assert!(own[2] != [0; 4] && same(&own, &rings), "{scalar:x?}");
        }
        let (mut none, zero) = ([[7; 4]; 3], [0; 4]);
        // SAFETY: as above.
        unsafe { multiply_base(&raw mut none, &raw const zero) };
        assert_eq!(none[2], [0; 4]);
    }
}
