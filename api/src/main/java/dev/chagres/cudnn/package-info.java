/**
 * cuDNN's backend graphs: operations over symbolic tensors are described once, planned for a device, and run on tensors.
 *
 * <ul>
 *   <li>{@link dev.chagres.cudnn.GraphBuilder} takes operations by name and infers their results; {@link
 *       dev.chagres.cudnn.OperationGraph} is what it builds.
 *   <li>{@link dev.chagres.cudnn.ExecutionPlan} is the engine that cuDNN's heuristics chose for a graph within {@link
 *       dev.chagres.cudnn.PlanOptions}; it runs with the tensors of a {@link dev.chagres.cudnn.VariantPack}.
 * </ul>
 *
 * <p>Words are those of {@code cudnn_graph.h}. The reference computes the same graphs on the CPU, behind the same functions.
 */
@NullMarked
package dev.chagres.cudnn;

import org.jspecify.annotations.NullMarked;
