package dev.chagres.besidete;

import dev.chagres.DType;
import dev.chagres.HostBuffer;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.Alibi;
import dev.chagres.attention.Sequences;
import dev.chagres.besidete.LayerCase.Scores;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.parameter.State;
import dev.chagres.pass.Pass;
import dev.chagres.pass.SharedInput;
import java.lang.foreign.MemorySegment;
import java.util.SplittableRandom;
import org.jspecify.annotations.Nullable;

/** What is done with the scores of a drawn layer: tells the layer, and has the numbers that the file gets. */
final class ScoreTensors {
    private static final int HIDDEN_ONE_IN = 3;

    private final SharedInput biases = new SharedInput("biases");
    private final @Nullable Tensor slopes;
    private final @Nullable Tensor bias;
    private final @Nullable Tensor mask;

    private ScoreTensors(@Nullable Tensor slopes, @Nullable Tensor bias, @Nullable Tensor mask) {
        this.slopes = slopes;
        this.bias = bias;
        this.mask = mask;
    }

    static ScoreTensors draw(LayerCase drawn, TransformerLayer layer, Scope scope, SplittableRandom random) {
        int heads = drawn.config().attention().heads();
        return switch (drawn.scores()) {
            case PLAIN -> new ScoreTensors(null, null, null);
            case ALIBI -> {
                layer.alibi(Alibi.of(scope, heads));
                yield new ScoreTensors(null, null, null);
            }
            case SLOPES -> {
                Alibi alibi = Alibi.ofSlopes(scope, slopes(heads, random));
                layer.alibi(alibi);
                yield new ScoreTensors(alibi.slopes(), null, null);
            }
            case BIAS, BIAS_BEFORE_SCALE -> {
                ScoreTensors tensors = new ScoreTensors(null, bias(drawn, scope, random), null);
                if (drawn.scores() == Scores.BIAS) {
                    layer.bias(tensors.biases);
                } else {
                    layer.preScaleBias(tensors.biases);
                }
                yield tensors;
            }
            case MASK -> new ScoreTensors(null, null, mask(drawn, scope, random));
        };
    }

    /** Powers of two: TE rounds what slopes give to BF16. */
    private static float[] slopes(int heads, SplittableRandom random) {
        float[] slopes = new float[heads];
        for (int i = 0; i < heads; i++) {
            slopes[i] = Math.scalb(1f, -random.nextInt(6));
        }
        return slopes;
    }

    private static int[] sizes(LayerCase drawn) {
        return new int[] {
            drawn.owner().sequences(drawn.tokens().lengths().size()),
            drawn.owner().heads(drawn.config().attention().heads()),
            drawn.tokens().padded(),
            drawn.tokens().padded()
        };
    }

    private static Tensor bias(LayerCase drawn, Scope scope, SplittableRandom random) {
        int[] sizes = sizes(drawn);
        float[] values = new float[sizes[0] * sizes[1] * sizes[2] * sizes[3]];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) random.nextGaussian();
        }
        Tensor tensor = scope.tensor(DType.BFLOAT16, sizes[0], sizes[1], sizes[2], sizes[3]);
        tensor.set(scope.stream(), values);
        return tensor;
    }

    /** Each query sees its own key. */
    private static Tensor mask(LayerCase drawn, Scope scope, SplittableRandom random) {
        int[] sizes = sizes(drawn);
        byte[] bytes = new byte[sizes[0] * sizes[1] * sizes[2] * sizes[3]];
        for (int i = 0; i < bytes.length; i++) {
            int key = i % sizes[3];
            int query = i / sizes[3] % sizes[2];
            boolean hidden = random.nextInt(HIDDEN_ONE_IN) == 0;
            bytes[i] = (byte) (hidden && key != query ? 1 : 0);
        }
        Tensor tensor = scope.tensor(DType.BYTE, sizes[0], sizes[1], sizes[2], sizes[3]);
        try (HostBuffer host = HostBuffer.pageable(scope.device(), bytes.length)) {
            host.segment().copyFrom(MemorySegment.ofArray(bytes));
            tensor.copyFrom(scope.stream(), host.segment());
            scope.stream().synchronize();
        }
        return tensor;
    }

    /** Returns the sequences with the mask, if there is one. */
    public Sequences mask(Sequences sequences) {
        return mask == null ? sequences : sequences.withScoreMask(mask);
    }

    /** Gives the bias, before the layer's forward call. */
    void forward(Pass pass) {
        if (bias != null) {
            biases.forward(bias, pass);
        }
    }

    /** Returns the gradient of the bias, behind the layer's backward call. */
    @Nullable
    Tensor backward(Pass pass) {
        return bias == null ? null : biases.backward(pass);
    }

    void addTo(State.Builder state, @Nullable Tensor dbias) {
        if (slopes != null) {
            state.tensor("slopes", slopes);
        }
        if (mask != null) {
            state.tensor("mask", mask);
        }
        if (bias != null && dbias != null) {
            state.tensor("bias", bias).tensor("dbias", dbias);
        }
    }
}
