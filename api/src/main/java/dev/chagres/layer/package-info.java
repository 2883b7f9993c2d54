/**
 * Layers with explicit forward and backward calls. A {@link dev.chagres.layer.Pass} carries what is the same for all of them; a
 * {@link dev.chagres.layer.Layer} declares its parameters in a {@link dev.chagres.parameter.ModelPlan}. Inputs are [T, H] whatever the
 * arrangement of the tokens.
 */
@NullMarked
package dev.chagres.layer;

import org.jspecify.annotations.NullMarked;
