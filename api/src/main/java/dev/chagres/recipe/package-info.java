/**
 * Recipes: how products are computed in eight bits, with the classes and defaults of Transformer Engine's
 * {@code transformer_engine.common.recipe}. A table in {@code docs/recipes.md} lists the options whose names differ.
 */
@NullMarked
package dev.chagres.recipe;

import org.jspecify.annotations.NullMarked;
