package dev.chagres.trainer.command;

import dev.chagres.DType;
import dev.chagres.Event;
import dev.chagres.HostBuffer;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;
import dev.chagres.models.data.EsmVocabulary;
import dev.chagres.models.esm.Esm2;
import dev.chagres.models.esm.Esm2Base;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.recipe.Quantizers;
import dev.chagres.recipe.Recipe;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.Arrays;
import java.util.List;
import java.util.function.BiFunction;
import org.jspecify.annotations.Nullable;

/**
 * An ESM-2 that computes packed sequences of tokens, and brings the result to the host.
 *
 * <p>Threading: the device's thread.
 */
final class PackedModel implements AutoCloseable {
    private final BiFunction<Tensor, Pass, Tensor> model;
    private final Pass pass;
    private final @Nullable Quantizers quantizers;
    /** Of the batch that is read, and of the one that is computed meanwhile. */
    private final States[] states;

    private int started;

    /**
     * @param recipe by which the products of the layers are computed in eight bits; null: in the model's type
     * @throws IllegalArgumentException when the device cannot compute the recipe
     */
    private PackedModel(BiFunction<Tensor, Pass, Tensor> model, Parameters parameters, @Nullable Recipe recipe) {
        this.model = model;
        Stream stream = parameters.scope().stream();
        quantizers = recipe == null ? null : Quantizers.allocate(parameters, recipe);
        pass = Pass.evaluation(stream);
        if (quantizers != null) {
            pass.autocast(quantizers);
        }
        states = new States[] {new States(stream), new States(stream)};
    }

    /** Returns one that computes the states behind the last norm, H numbers a token. */
    static PackedModel hidden(Esm2Base model, @Nullable Recipe recipe) {
        return new PackedModel(model::hidden, model.parameters(), recipe);
    }

    /** Returns one that computes the scores of each token, {@link EsmVocabulary#PADDED_SIZE} numbers a token, of which 33 count. */
    static PackedModel logits(Esm2 model, @Nullable Recipe recipe) {
        return new PackedModel(model::logits, model.parameters(), recipe);
    }

    /** What the device computes of a batch and copies to the host by itself. */
    static final class States implements AutoCloseable {
        private final Stream stream;
        private final Event copied;
        private @Nullable HostBuffer buffer;
        private DType dtype = DType.FLOAT32;
        private int columns;

        private States(Stream stream) {
            this.stream = stream;
            copied = stream.device().openEvent();
        }

        private void take(Tensor hidden) {
            HostBuffer target = buffer;
            if (target == null || target.segment().byteSize() < hidden.byteSize()) {
                close(target);
                target = HostBuffer.pinned(stream.device(), hidden.byteSize());
                buffer = target;
            }
            hidden.copyTo(stream, target);
            copied.record(stream);
            dtype = hidden.dtype();
            columns = Math.toIntExact(hidden.size(1));
        }

        /** Waits until the states are on the host. */
        void await() {
            copied.synchronize();
        }

        /** Writes the states of a token; {@link #await} comes before. */
        void read(int token, float[] row) {
            HostBuffer source = buffer;
            if (source == null) {
                throw new IllegalStateException("No batch was started.");
            }
            MemorySegment host = source.segment();
            long first = (long) token * columns;
            switch (dtype) {
                case FLOAT32 -> MemorySegment.copy(host, ValueLayout.JAVA_FLOAT, first * Float.BYTES, row, 0, columns);
                case BFLOAT16 -> {
                    for (int i = 0; i < columns; i++) {
                        row[i] = Float.intBitsToFloat(host.getAtIndex(ValueLayout.JAVA_SHORT, first + i) << 16);
                    }
                }
                default -> {
                    for (int i = 0; i < columns; i++) {
                        row[i] = Float.float16ToFloat(host.getAtIndex(ValueLayout.JAVA_SHORT, first + i));
                    }
                }
            }
        }

        private static void close(@Nullable HostBuffer buffer) {
            if (buffer != null) {
                buffer.close();
            }
        }

        @Override
        public void close() {
            close(buffer);
            copied.close();
        }
    }

    /**
     * Begins to compute a batch. Its numbers stay until the batch after the next one is started, so that one batch is read while the next is
     * computed.
     */
    States start(List<int[]> sequences) {
        States next = states[started++ % states.length];
        next.take(model.apply(begin(sequences), pass));
        return next;
    }

    /** Returns the numbers of each token; it waits for the device. */
    float[] compute(List<int[]> sequences) {
        return model.apply(begin(sequences), pass).toFloats(pass.stream());
    }

    private Tensor begin(List<int[]> sequences) {
        int[] ids = sequences.stream().flatMapToInt(Arrays::stream).toArray();
        pass.begin();
        pass.sequences(Sequences.packed(
                pass.scope(), sequences.stream().mapToInt(one -> one.length).toArray()));
        Tensor batch = pass.scope().tensor(DType.INT32, ids.length);
        batch.set(pass.stream(), ids);
        return batch;
    }

    /** Returns the tokens of residues, between {@code <cls>} and {@code <eos>}. */
    static int[] tokens(byte[] residues, int begin, int count) {
        int[] tokens = new int[count + 2];
        tokens[0] = EsmVocabulary.CLS;
        for (int i = 0; i < count; i++) {
            tokens[i + 1] = EsmVocabulary.token(residues[begin + i]);
        }
        tokens[count + 1] = EsmVocabulary.EOS;
        return tokens;
    }

    /** Frees the memory of the calls; the model stays. */
    @Override
    public void close() {
        for (States one : states) {
            one.close();
        }
        pass.close();
        if (quantizers != null) {
            quantizers.close();
        }
    }
}
