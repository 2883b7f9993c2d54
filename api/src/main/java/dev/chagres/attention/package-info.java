/**
 * What attention reads besides query, key and value: sequences with their lengths, masks, ALiBi and rotation. {@link
 * dev.chagres.layer.DotProductAttention} computes attention with them.
 */
@NullMarked
package dev.chagres.attention;

import org.jspecify.annotations.NullMarked;
