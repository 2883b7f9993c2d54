package dev.chagres.nccl;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Graph;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.launch.Ranks;
import dev.chagres.pass.Pass;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Collectives of a group run at its end: until then nothing that they read or write can be given up. */
@Tag("L0")
@Tag("L2")
class InsideGroupTest {
    private static String refusal(String call) {
        return call
                + ": expected a call outside of Communicator.group, got one inside; the group's collectives run at its"
                + " end, and until then need their memory and have no results; call it after the group";
    }

    private static void refused(String call, Runnable action) {
        assertThrown(IllegalStateException.class, refusal(call), action::run);
    }

    @Test
    void nothingThatACollectiveUsesIsGivenUp() {
        DevicesNeeded.assume(2);
        Ranks.local(2).each(rank -> {
            Device device = rank.device();
            Stream stream = device.openStream();
            try (Pass pass = Pass.training(device);
                    PremultipliedSum sum = rank.communicator().premultipliedSum(DType.FLOAT32, 2)) {
                Scope scope = device.openScope(stream);
                Scope nested = scope.open();
                Tensor tensor = nested.tensor(DType.FLOAT32, 1000);
                tensor.zero(stream);
                tensor.set(stream, new float[1000]);
                Communicator.group(() -> {
                    rank.communicator().allReduce(tensor, tensor, Reduction.SUM, stream);
                    rank.communicator().allReduce(tensor, tensor, sum, stream);
                    refused("close", sum::close);
                    refused("close", scope::close);
                    refused("close", nested::close);
                    refused("restart", nested::restart);
                    refused("close", stream::close);
                    refused("close", device::close);
                    refused("detach", device::detach);
                    refused("begin", pass::begin);
                    refused("end", pass::end);
                    refused("close", pass::close);
                });
                assertArrayEquals(new float[1000], tensor.toFloats(stream));
                nested.restart();
                nested.close();
                scope.restart();
                scope.close();
                stream.close();
                pass.begin();
            }
        });
    }

    /** It hands memory to nobody: a group over many pieces makes views of them. */
    @Test
    void aNestedScopeOfViewsCloses() {
        DevicesNeeded.assume(2);
        Ranks.local(2).each(rank -> {
            Stream stream = rank.device().stream();
            try (Scope scope = rank.device().openScope()) {
                Tensor tensor = scope.tensor(DType.FLOAT32, 4);
                tensor.set(stream, 1f, 2f, 3f, 4f);
                Communicator.group(() -> {
                    for (int half = 0; half < 2; half++) {
                        try (Scope views = scope.open()) {
                            Tensor view = views.view(tensor, 2L * half, 2);
                            rank.communicator().allReduce(view, view, Reduction.SUM, stream);
                        }
                    }
                });
                assertArrayEquals(new float[] {2, 4, 6, 8}, tensor.toFloats(stream));
            }
        });
    }

    /** What is refused after a group that threw is refused no more. */
    @Test
    void aGroupThatThrowsEnds() {
        Ranks.local(1).each(rank -> {
            assertThrown(
                    IllegalStateException.class,
                    "changed my mind",
                    () -> Communicator.group(() -> {
                        throw new IllegalStateException("changed my mind");
                    }));
            Scope scope = rank.device().openScope();
            scope.restart();
            scope.close();
        });
    }

    @Test
    void noCaptureAndNoWait() {
        DevicesNeeded.assume(2);
        Ranks.local(2).each(rank -> {
            Stream stream = rank.device().stream();
            Communicator world = rank.communicator();
            try (Scope scope = rank.device().openScope()) {
                Tensor tensor = scope.tensor(DType.FLOAT32, 2);
                tensor.set(stream, 1f, 2f);
                Registration registration = world.register(tensor);
                List<Graph> graphs = new ArrayList<>();
                Communicator.group(() -> {
                    refused(
                            "capture",
                            () -> graphs.add(
                                    stream.capture(() -> world.allReduce(tensor, tensor, Reduction.SUM, stream))));
                    assertThrown(
                            IllegalStateException.class,
                            "synchronize: expected a call outside of Communicator.group, got one inside",
                            () -> world.synchronize(stream));
                    assertThrown(
                            IllegalStateException.class,
                            "close: expected a call outside of Communicator.group, got one inside",
                            registration::close);
                });
                registration.close();
                try (Graph graph = stream.capture(
                        () -> Communicator.group(() -> world.allReduce(tensor, tensor, Reduction.SUM, stream)))) {
                    Communicator.group(() -> refused("launch", graph::launch));
                    graph.launch();
                    assertArrayEquals(new float[] {2, 4}, tensor.toFloats(stream));
                }
            }
        });
    }
}
