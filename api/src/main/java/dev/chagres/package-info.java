/**
 * Devices, streams and the memory of a training step.
 *
 * <p>Letters used for shapes in all packages: {@code T} tokens, {@code B} sequences, {@code S} padded sequence length,
 * {@code h} attention heads, {@code g} key/value groups, {@code d} head dimension, {@code H} hidden size, {@code F}
 * feed-forward size, {@code V} vocabulary rows.
 */
@NullMarked
package dev.chagres;

import org.jspecify.annotations.NullMarked;
