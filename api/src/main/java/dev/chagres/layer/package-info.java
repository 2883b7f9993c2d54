/**
 * Layers: products, norms, attention, feed-forward and transformer layers, embedding and loss. Each is a {@link dev.chagres.pass.Layer}, which
 * declares its parameters in a {@link dev.chagres.parameter.ModelPlan}. Inputs are [T, H] whatever the arrangement of the tokens.
 */
@NullMarked
package dev.chagres.layer;

import org.jspecify.annotations.NullMarked;
