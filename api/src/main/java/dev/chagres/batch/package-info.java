/**
 * What a training program needs and no model owns.
 *
 * <pre>
 *   TokenSequences → SequencePacker → BatchSource → UploadRing → forward, backward, optimizer → StepReadback
 *   yours            to a token       reads ahead    host to                                     device to
 *                    budget           in a thread    device                                      host
 * </pre>
 *
 * <p>A step's {@link dev.chagres.batch.Batch} consists of one or several {@link dev.chagres.batch.MicroBatch}es, whose gradients
 * are summed before the optimizer's step. Learning rates come from {@link dev.chagres.optim.LearningRateSchedule}; what a run
 * writes goes through {@link dev.chagres.io.AtomicFile}, in whichever format.
 *
 * <p>What a batch holds follows from the sequences and the {@link dev.chagres.batch.BatchShape}, never from the timing of threads
 * or from the device.
 */
@NullMarked
package dev.chagres.batch;

import org.jspecify.annotations.NullMarked;
