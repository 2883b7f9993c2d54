/**
 * The parameters of a model: {@link dev.chagres.model.ModelPlan} describes them, {@link dev.chagres.model.Parameters} give
 * them memory and first weights, {@link dev.chagres.model.State} lists what must be saved to go on exactly.
 */
@NullMarked
package dev.chagres.model;

import org.jspecify.annotations.NullMarked;
