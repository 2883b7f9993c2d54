/**
 * Recipes: how products are computed in eight bits, with the names, fields and defaults of Transformer Engine's
 * {@code transformer_engine.common.recipe}.
 */
@NullMarked
package dev.chagres.recipe;

import org.jspecify.annotations.NullMarked;
