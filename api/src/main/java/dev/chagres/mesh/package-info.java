/**
 * Meshes of ranks, and tensors that ranks split along their dimensions: {@link dev.chagres.mesh.Mesh},
 * {@link dev.chagres.mesh.ShardedTensor}.
 */
@NullMarked
package dev.chagres.mesh;

import org.jspecify.annotations.NullMarked;
