/**
 * Protein sequences as training batches: FASTA files read as a stream, ESM-2's vocabulary, masking, packing, read-ahead.
 *
 * <p>Everything here is plain Java and the same from run to run: what a batch holds follows from the file, the seed and
 * the {@link dev.chagres.samples.data.BatchShape}, never from the timing of threads.
 */
@NullMarked
package dev.chagres.samples.data;

import org.jspecify.annotations.NullMarked;
