/**
 * Layers with explicit forward and backward passes. A layer declares its parameters in a {@link
 * dev.chagres.layer.ParameterPlan}; {@link dev.chagres.layer.Parameters} give them memory. Inputs are [T, H] whatever the
 * arrangement of the tokens.
 */
@NullMarked
package dev.chagres.layer;

import org.jspecify.annotations.NullMarked;
