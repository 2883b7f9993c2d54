/**
 * A model whose layers are divided among ranks: stages, the order of their micro-batches, training and evaluation through them.
 *
 * <p>Letters: P ranks of a pipeline, r a rank, s a stage.
 */
@NullMarked
package dev.chagres.pipeline;

import org.jspecify.annotations.NullMarked;
