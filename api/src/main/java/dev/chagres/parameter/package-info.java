/**
 * The parameters of a model: {@link dev.chagres.parameter.ModelPlan} describes them, {@link dev.chagres.parameter.Parameters} give
 * them memory and first weights, {@link dev.chagres.parameter.State} lists what must be saved to go on exactly.
 */
@NullMarked
package dev.chagres.parameter;

import org.jspecify.annotations.NullMarked;
