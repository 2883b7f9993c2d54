/** Attention over packed and padded sequences: lengths, masks, rotary positions, and the fused kernels. */
@NullMarked
package dev.chagres.attention;

import org.jspecify.annotations.NullMarked;
