package dev.chagres.layer;

import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.layer.TransformerLayerConfig.NormPlacement;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.pass.ContextPool;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Recomputed;
import dev.chagres.pass.SavedContext;
import dev.chagres.pass.SavedTensor;
import dev.chagres.pass.Sequential;
import dev.chagres.pass.SharedInput;
import dev.chagres.te.Activation;
import dev.chagres.te.Normalization.Gamma;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** What a layer prints: name, class, sizes, what is not as usual, and the layers inside. */
@Tag("L0")
class LayerToStringTest {
    private final ModelPlan plan = new ModelPlan();

    @Test
    void smallLayersTakeALine() {
        Initializer zeros = Initializer.zeros();
        assertEquals("a: Linear(in=32, out=96)", new Linear(32, 96, zeros, plan.group("a")).toString());
        assertEquals(
                "b: Linear(in=32, out=96, bias=ABSENT)",
                new Linear(32, 96, Bias.ABSENT, zeros, plan.group("b")).toString());
        assertEquals("c: LayerNorm(size=8)", new LayerNorm(NormConfig.layerNorm(8), plan.group("c")).toString());
        assertEquals(
                "d: RmsNorm(size=8, epsilon=0.1, gamma=" + Gamma.values()[1] + ")",
                new RmsNorm(new NormConfig(NormConfig.Kind.RMS_NORM, 8, 0.1f, Gamma.values()[1]), plan.group("d"))
                        .toString());
        assertEquals("e: ActivationLayer(GELU)", new ActivationLayer("e", Activation.GELU).toString());
    }

    @Test
    void layersInsideStandBelow() {
        Linear linear = new Linear(8, 8, Initializer.zeros(), plan.group("head").child("dense"));
        assertEquals("""
                head: Sequential(layers=2)
                  head.dense: Linear(in=8, out=8)
                  head.dense: Recomputed
                    head.dense: Linear(in=8, out=8)""", new Sequential("head", linear, new Recomputed(linear)).toString());
        assertEquals(
                """
                proj: LayerNormLinear(in=8, out=16)
                  proj.norm: LayerNorm(size=8)
                  proj.linear: Linear(in=8, out=16)""",
                new LayerNormLinear(NormConfig.layerNorm(8), 16, Initializer.zeros(), plan.group("proj")).toString());
    }

    @Test
    void aTransformerLayerShowsAllOfIt() {
        AttentionConfig attention = AttentionConfig.of(
                        4, 8, AttentionMask.causal().withWindow(16, 0))
                .withKeyHeads(2)
                .withSoftcap(30);
        TransformerLayerConfig config = TransformerLayerConfig.encoder(32, attention)
                .withHiddenDropout(Dropout.of(0.25f))
                .withRecomputation(TransformerLayerConfig.Recomputation.NORMS)
                .withMlp(MlpConfig.gelu(32).withRecomputation(MlpConfig.Recomputation.ACTIVATION));
        assertEquals("""
                layers.0: TransformerLayer(hidden=32, recomputation=NORMS, hiddenDropout=0.25)
                  layers.0.attention: MultiheadAttention(heads=4, keyHeads=2, headDim=8, mask=CAUSAL, windowLeft=16, softcap=30.0)
                    layers.0.attention.qkv.norm: LayerNorm(size=32)
                    layers.0.attention.qkv.linear: Linear(in=32, out=64)
                    layers.0.attention.projection: Linear(in=32, out=32)
                  layers.0.mlp: LayerNormMlp(hidden=32, inner=128, activation=GELU, recomputation=ACTIVATION)
                    layers.0.mlp.norm: LayerNorm(size=32)
                    layers.0.mlp.fc1: Linear(in=32, out=128)
                    layers.0.mlp.fc2: Linear(in=128, out=32)""", new TransformerLayer(config, plan.group("layers.0")).toString());
    }

    @Test
    void aDecodersLayerShowsCrossAttentionAndTheOutputsNorm() {
        AttentionConfig attention = AttentionConfig.of(2, 8, AttentionMask.none());
        CrossAttentionConfig cross = CrossAttentionConfig.of(16, attention.withScale(0.5f));
        assertEquals("""
                cross: CrossAttention(heads=2, headDim=8, mask=NONE, scale=0.5, memoryColumns=16)
                  cross.norm: LayerNorm(size=16)
                  cross.query: Linear(in=16, out=16)
                  cross.key_value: Linear(in=16, out=32)
                  cross.projection: Linear(in=16, out=16)""", new CrossAttention(cross, new SharedInput("memory"), plan.group("cross")).toString());
        TransformerLayerConfig config =
                TransformerLayerConfig.encoder(16, attention).withNormPlacement(NormPlacement.OUTPUT);
        assertEquals(
                "last: TransformerLayer(hidden=16, normPlacement=OUTPUT)",
                new TransformerLayer(config, plan.group("last"))
                        .toString()
                        .lines()
                        .findFirst()
                        .orElseThrow());
    }

    @Test
    void aLayerOfOnesOwnHasNameAndClass() {
        assertEquals("twice: Twice", new Twice("twice").toString());
        assertEquals("Twice", new Twice("").toString());
        assertEquals("mine: Layer", new Twice("mine") {}.toString());
    }

    /** What is no layer, for it has other arguments, is shown alike. */
    @Test
    void theEndsOfAModelAreShownAlike() {
        Embedding embedding = new Embedding(100, 8, Initializer.zeros(), plan.group("tokens"));
        assertEquals("tokens: Embedding(vocabulary=100, hidden=8)", embedding.toString());
        assertEquals("cross-entropy of 9 classes", new CrossEntropy(9).toString());
        assertEquals("memory: SharedInput", new SharedInput("memory").toString());
        AttentionConfig config = AttentionConfig.of(4, 8, AttentionMask.causal());
        assertEquals(
                "attention: DotProductAttention(heads=4, headDim=8, mask=CAUSAL)",
                new DotProductAttention(config).toString());
        assertEquals("saved objects of tokens", new ContextPool<>(embedding, TestSaved::new).toString());
        assertEquals("the input: nothing", new SavedTensor("the input").toString());
    }

    private static final class TestSaved extends SavedContext {}

    private static class Twice extends Layer {
        Twice(String name) {
            super(name);
        }

        @Override
        protected void run(Tensor x, Tensor y, Pass pass) {
            throw new UnsupportedOperationException("never run");
        }

        @Override
        protected void gradient(Tensor dy, Tensor dx, Pass pass) {
            throw new UnsupportedOperationException("never run");
        }
    }
}
