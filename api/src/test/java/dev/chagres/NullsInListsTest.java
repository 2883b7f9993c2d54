package dev.chagres;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;

import dev.chagres.attention.RotaryConfig;
import dev.chagres.io.SafetensorsWriter;
import dev.chagres.io.TensorSource;
import dev.chagres.layer.ActivationLayer;
import dev.chagres.layer.Linear;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.CommunicatorConfig;
import dev.chagres.nccl.UniqueId;
import dev.chagres.parallel.ParameterSplit;
import dev.chagres.parameter.FlatGroup;
import dev.chagres.parameter.FlatParameter;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.ParameterAccess;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.PipelineStages;
import dev.chagres.parameter.PipelineStages.Tied;
import dev.chagres.parameter.State;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.PassObserver;
import dev.chagres.pass.ProfilerRanges;
import dev.chagres.pass.Sequential;
import dev.chagres.pipeline.PipelineSchedule;
import dev.chagres.te.Activation;
import dev.chagres.te.TensorLists;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.api.io.TempDir;

/** Lists and arrays with a null inside: the error names the argument and the place. */
@Tag("L0")
@Tag("L1")
@SuppressWarnings({"DataFlowIssue", "NullAway"}) // Callers without a null checker pass null.
class NullsInListsTest {
    private static void missing(String argument, int index, Executable call) {
        assertThrown(NullPointerException.class, argument + ": expected values, got null at " + index, call);
    }

    @Test
    void ofLayersNumbersAndStates() {
        Layer gelu = new ActivationLayer("gelu", Activation.GELU);
        missing("layers", 1, () -> new Sequential("s", gelu, null));
        assertEquals(2, new Sequential("s", gelu, gelu).layers().size());
        missing("frequencies", 1, () -> RotaryConfig.of(4).withFrequencies(Arrays.asList(1.0, null)));
        missing("parts", 0, () -> State.of((State) null));
    }

    @Test
    void ofPartsOfAModel() {
        missing("members", 0, () -> new FlatGroup("g", Arrays.asList((Parameter) null), 0, 0, List.of()));
        missing("pieces", 0, () -> new FlatGroup("g", List.of(), 0, 0, Arrays.asList((FlatParameter) null)));
        missing("sections", 1, () -> new ParameterSplit(Shape.of(8), 0, Arrays.asList(4L, null), 0, 1));
        missing("transfers", 0, () -> new PipelineSchedule.Exchange(Arrays.asList((PipelineSchedule.Transfer) null)));
    }

    @Test
    void ofParametersInUse() {
        ModelPlan plan = new ModelPlan();
        Linear linear = new Linear(8, 8, Initializer.zeros(), plan.group("group"));
        try (Device device = Device.open();
                Scope scope = device.openScope();
                Parameters parameters = Parameters.allocate(device, plan, DType.FLOAT32, 1);
                ProfilerRanges ranges = new ProfilerRanges();
                Pass pass = Pass.training(device)) {
            ParameterAccess sharing = parameters.access();
            for (int group : new int[] {Integer.MIN_VALUE, -1, 1, Integer.MAX_VALUE}) {
                String text = "group: expected the number of one of 1 groups, counted from 0, got " + group;
                assertThrown(IllegalArgumentException.class, text, () -> sharing.takeBackGradients(group));
                assertThrown(IllegalArgumentException.class, text, () -> sharing.forgetGradients(group));
                assertThrown(IllegalArgumentException.class, text, () -> sharing.completeGradients(group));
            }
            Tensor tensor = scope.tensor(DType.FLOAT32, 8, 8);
            none("gradient", () -> sharing.lendGradient(linear.weight(), null));
            none("parameter", () -> sharing.lendGradient(null, tensor));
            none("weight", () -> sharing.lendWeight(linear.weight(), null));
            none("scope", () -> sharing.counted(null));
            none("direction", () -> ranges.entering(linear, null, pass));
            none("layer", () -> ranges.entering(null, PassObserver.Direction.FORWARD, pass));
            try (Communicator one = Communicator.open(device, UniqueId.create(), 1, 0, CommunicatorConfig.standard())) {
                missing(
                        "tied",
                        0,
                        () -> new PipelineStages(scope, one, Arrays.asList((Tied) null), Set.of(), rank -> List.of()));
                assertThrown(
                        NullPointerException.class,
                        "countedElsewhere: expected values, got a null among them",
                        () -> new PipelineStages(
                                scope, one, List.of(), Collections.singleton(null), rank -> List.of()));
            }
        }
    }

    private static void none(String argument, Executable call) {
        assertThrown(NullPointerException.class, argument + ": expected a value, got null", call);
    }

    @Test
    void ofTensors(@TempDir Path folder) {
        try (Device device = Device.open();
                Scope scope = device.openScope()) {
            Tensor one = scope.tensor(DType.FLOAT32, 4);
            missing("lists[1]", 0, () -> TensorLists.of(new Tensor[] {one}, new Tensor[] {null}));
            assertThrown(
                    NullPointerException.class,
                    "lists[1]: expected a value, got null",
                    () -> TensorLists.of(new Tensor[] {one}, null));
            missing("buffers", 0, () -> TensorLists.ofRange(scope, 0, 4, (Tensor) null));
            assertThrown(
                    IllegalArgumentException.class,
                    "offset: expected elements within Tensor FLOAT32[4], got 9223372036854775807 from 0 on",
                    () -> TensorLists.ofRange(scope, 0, Long.MAX_VALUE, one));
            assertThrown(
                    IllegalArgumentException.class,
                    "offset: expected elements within Tensor FLOAT32[4], got 1 from 9223372036854775807 on",
                    () -> TensorLists.ofRange(scope, Long.MAX_VALUE, 1, one));
            TensorLists.ofRange(scope, 0, 4, one).close();
        }
        Path file = folder.resolve("model.safetensors");
        missing("tensors", 0, () -> SafetensorsWriter.write(file, Arrays.asList((TensorSource) null), Map.of()));
        assertFalse(Files.exists(file));
    }
}
