package dev.chagres.drawn;

import dev.chagres.DType;
import dev.chagres.HostBuffer;
import dev.chagres.Tensor;
import dev.chagres.attention.Alibi;
import dev.chagres.attention.Sequences;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerance;
import dev.chagres.drawn.DrawnScores.Added;
import dev.chagres.drawn.DrawnScores.Mask;
import dev.chagres.drawn.DrawnScores.Owner;
import dev.chagres.drawn.DrawnScores.Slopes;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.CrossAttention;
import dev.chagres.layer.MultiheadAttention;
import dev.chagres.pass.Pass;
import dev.chagres.pass.SharedInput;
import dev.chagres.witness.Rounding;
import dev.chagres.witness.ScoreGrid;
import dev.chagres.witness.ScoreWitness;
import java.lang.foreign.MemorySegment;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;

/** Changes the scores of one attention of a layer, and those of its witness alike. */
final class ScoreChanges {
    /** What an attention is told. */
    record Attention(
            String name,
            AttentionConfig config,
            Consumer<Alibi> alibi,
            Consumer<SharedInput> bias,
            Consumer<SharedInput> preScaleBias) {
        static Attention of(AttentionConfig config, MultiheadAttention attention) {
            return new Attention("self", config, attention::alibi, attention::bias, attention::preScaleBias);
        }

        static Attention of(AttentionConfig config, CrossAttention attention) {
            return new Attention("cross", config, attention::alibi, attention::bias, attention::preScaleBias);
        }
    }

    private final Attention attention;
    private final DrawnScores drawn;
    private final ScoreWitness witness;
    private final DType dtype;
    private final OpenDevice open;
    private final SharedInput biases;
    private @Nullable ScoreGrid bias;
    private @Nullable Tensor gradient;

    ScoreChanges(Attention attention, DrawnScores drawn, ScoreWitness witness, DType dtype, OpenDevice open) {
        this.attention = attention;
        this.drawn = drawn;
        this.witness = witness;
        this.dtype = dtype;
        this.open = open;
        biases = new SharedInput("biases of " + attention.name);
    }

    /** Tells layer and witness; returns {@code sequences} with a mask, if there is one. */
    Sequences change(Sequences sequences) {
        int heads = attention.config.heads();
        if (drawn.slopes() != Slopes.NONE) {
            Alibi alibi = drawn.slopes() == Slopes.USUAL ? Alibi.of(open.scope(), heads) : given(heads);
            attention.alibi.accept(alibi);
            double[] slopes = new double[heads];
            float[] read = open.read(alibi.slopes());
            for (int i = 0; i < heads; i++) {
                slopes[i] = read[i];
            }
            witness.alibi(slopes);
        }
        if (drawn.bias() != Added.NOTHING) {
            ScoreGrid added = grid(drawn.biasOf(), sequences);
            System.arraycopy(open.normal(dtype, added.values().length, 1), 0, added.values(), 0, added.values().length);
            bias = added;
            if (drawn.bias() == Added.BEFORE_SCALE) {
                attention.preScaleBias.accept(biases);
                witness.preScaleBias(added);
            } else {
                attention.bias.accept(biases);
                witness.bias(added);
            }
        }
        return drawn.mask() == Mask.NONE ? sequences : masked(sequences);
    }

    private Alibi given(int heads) {
        float[] slopes = new float[heads];
        for (int i = 0; i < heads; i++) {
            slopes[i] = (float) Rounding.round(open.random().nextDouble(-0.5, 1), DType.FLOAT32);
        }
        return Alibi.ofSlopes(open.scope(), slopes);
    }

    private ScoreGrid grid(Owner owner, Sequences sequences) {
        int ofSequences = owner.sequences(Math.toIntExact(sequences.batch()));
        int ofHeads = owner.heads(attention.config.heads());
        int queries = Math.toIntExact(sequences.length()) + drawn.slack();
        int keys = Math.toIntExact(sequences.keys().length()) + drawn.slack();
        return new ScoreGrid(ofSequences, ofHeads, queries, keys, new double[ofSequences * ofHeads * queries * keys]);
    }

    private Sequences masked(Sequences sequences) {
        ScoreGrid hidden = grid(drawn.maskOf(), sequences);
        byte[] bytes = new byte[hidden.values().length];
        for (int i = 0; i < bytes.length; i++) {
            bytes[i] = (byte) (open.random().nextInt(3) == 0 ? 1 : 0);
            hidden.values()[i] = bytes[i];
        }
        witness.mask(hidden);
        Tensor mask =
                open.scope().tensor(DType.BYTE, hidden.sequences(), hidden.heads(), hidden.queries(), hidden.keys());
        try (HostBuffer host = HostBuffer.pageable(open.device(), bytes.length)) {
            host.segment().copyFrom(MemorySegment.ofArray(bytes));
            mask.copyFrom(open.stream(), host.segment());
            open.stream().synchronize();
        }
        return sequences.withScoreMask(mask);
    }

    /** Gives the bias, before the layer's forward call. */
    void forward(Pass pass) {
        ScoreGrid added = bias;
        if (added != null) {
            Tensor tensor =
                    open.tensor(dtype, added.values(), added.sequences(), added.heads(), added.queries(), added.keys());
            if (drawn.bias() == Added.FIXED_BIAS) {
                tensor.stopGradient();
            }
            biases.forward(tensor, pass);
        }
    }

    /** Takes the gradient of the bias, behind the layer's backward call. */
    void backward(Pass pass) {
        if (bias != null) {
            gradient = biases.backward(pass);
        }
    }

    /** Compares the gradient of the bias. What it is the difference of may be larger than itself, where a query sees few keys. */
    void assertGradient(Tolerance tolerance) {
        Tensor found = gradient;
        if (found == null) {
            return;
        }
        double[] expected = drawn.bias() == Added.FIXED_BIAS
                ? witness.biasGradient().zeros().values()
                : witness.biasGradient().values();
        double sum = 0;
        for (double summands : witness.biasSummands().values()) {
            sum += summands * summands;
        }
        double magnitude = Math.sqrt(sum / expected.length);
        open.assertClose("gradient of the bias of " + attention.name, expected, open.read(found), magnitude, tolerance);
    }
}
