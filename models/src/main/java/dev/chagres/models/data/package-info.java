/**
 * Protein sequences: FASTA files read as a stream, ESM-2's vocabulary, order, masking.
 *
 * <p>Everything here is plain Java and the same from run to run: what a batch holds follows from the file, the seed and
 * the {@link dev.chagres.batch.BatchShape}, never from the timing of threads.
 */
@NullMarked
package dev.chagres.models.data;

import org.jspecify.annotations.NullMarked;
