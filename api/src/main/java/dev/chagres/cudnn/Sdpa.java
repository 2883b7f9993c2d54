package dev.chagres.cudnn;

import dev.chagres.bindings.cudnn.Cudnn;
import dev.chagres.internal.Checks;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Adds attention as one operation to graphs.
 *
 * <p>Threading: that of the builder.
 */
final class Sdpa {
    private Sdpa() {}

    static SdpaForward forward(
            GraphBuilder graph, String name, GraphTensor q, GraphTensor k, GraphTensor v, SdpaConfig config) {
        String kind = "sdpa";
        check(graph, kind, name, q, k, v, config);
        long[] dims = output(q, v);
        GraphTensor o = graph.result(kind, name, graph.intermediate(), dims, GraphTensor.ordered(dims, q));
        long[] rows = {q.dim(0), q.dim(1), q.dim(2), 1};
        GraphTensor stats = graph.result(kind, name + ".stats", DataType.FLOAT, rows, GraphTensor.rowMajor(rows));
        GraphTensor scale = graph.scalar(name + ".scale", 4, config.scale());
        List<GraphTensor> reads = new ArrayList<>(List.of(q, k, v, scale));
        Description description = new Description(Cudnn.CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR())
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC(), q)
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC(), k)
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC(), v)
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC(), o)
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_SDPA_FWD_STATSDESC(), stats)
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC(), scale);
        lengths(
                config,
                Cudnn.CUDNN_ATTR_OPERATION_SDPA_FWD_SEQ_LEN_QDESC(),
                Cudnn.CUDNN_ATTR_OPERATION_SDPA_FWD_SEQ_LEN_KVDESC(),
                reads,
                description);
        graph.add(onGpu(new Operation(kind, name, reads, List.of(o, stats), description), q, k, v));
        return new SdpaForward(o, stats, null);
    }

    private static Operation onGpu(Operation operation, GraphTensor... tensors) {
        boolean isFloat = Arrays.stream(tensors).anyMatch(tensor -> tensor.type() == DataType.FLOAT);
        return isFloat
                ? operation.refusedOnGpu(
                        "reads memory outside its tensors where q, k or v are FLOAT; make them HALF or BFLOAT16")
                : operation;
    }

    static SdpaGradients backward(
            GraphBuilder graph,
            String name,
            GraphTensor dy,
            GraphTensor q,
            GraphTensor k,
            GraphTensor v,
            SdpaForward saved,
            SdpaConfig config) {
        String kind = "sdpaBackward";
        check(graph, kind, name, q, k, v, config);
        long[] dims = output(q, v);
        sized(graph, kind, name, "dy", dy, dims);
        sized(graph, kind, name, "o", Checks.given("saved", saved).o(), dims);
        GraphTensor stats = saved.stats();
        if (stats == null) {
            throw GraphChecks.refusal(kind, name, "stats", "what the forward pass gave", null);
        }
        sized(graph, kind, name, "stats", stats, q.dim(0), q.dim(1), q.dim(2), 1);
        GraphTensor dq = like(graph, kind, name + ".dq", q);
        GraphTensor dk = like(graph, kind, name + ".dk", k);
        GraphTensor dv = like(graph, kind, name + ".dv", v);
        GraphTensor scale = graph.scalar(name + ".scale", 4, config.scale());
        List<GraphTensor> reads = new ArrayList<>(List.of(dy, q, k, v, saved.o(), stats, scale));
        Description description = new Description(Cudnn.CUDNN_BACKEND_OPERATION_SDPA_BWD_DESCRIPTOR())
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_SDPA_BWD_QDESC(), q)
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_SDPA_BWD_KDESC(), k)
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_SDPA_BWD_VDESC(), v)
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_SDPA_BWD_ODESC(), saved.o())
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_SDPA_BWD_DODDESC(), dy)
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_SDPA_BWD_STATSDESC(), stats)
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_SDPA_BWD_SCALEDESC(), scale)
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_SDPA_BWD_DQDESC(), dq)
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_SDPA_BWD_DKDESC(), dk)
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_SDPA_BWD_DVDESC(), dv);
        lengths(
                config,
                Cudnn.CUDNN_ATTR_OPERATION_SDPA_BWD_SEQ_LEN_QDESC(),
                Cudnn.CUDNN_ATTR_OPERATION_SDPA_BWD_SEQ_LEN_KVDESC(),
                reads,
                description);
        graph.add(new Operation(kind, name, reads, List.of(dq, dk, dv), description));
        return new SdpaGradients(dq, dk, dv, null, null, null);
    }

    private static void check(
            GraphBuilder graph,
            String kind,
            String name,
            GraphTensor q,
            GraphTensor k,
            GraphTensor v,
            SdpaConfig config) {
        Checks.given("config", config);
        if (graph.own(kind, name, "q", q).rank() != 4) {
            throw GraphChecks.refusal(kind, name, "q", "[B, H, Sq, D]", q);
        }
        boolean keys = graph.own(kind, name, "k", k).rank() == 4
                && k.dim(0) == q.dim(0)
                && k.dim(3) == q.dim(3)
                && q.dim(1) % k.dim(1) == 0;
        if (!keys) {
            throw GraphChecks.refusal(kind, name, "k", "[B, Hk, Skv, D] for " + q + ", where Hk divides H", k);
        }
        boolean values = graph.own(kind, name, "v", v).rank() == 4
                && v.dim(0) == q.dim(0)
                && v.dim(2) == k.dim(2)
                && q.dim(1) % v.dim(1) == 0;
        if (!values) {
            throw GraphChecks.refusal(kind, name, "v", "[B, Hv, Skv, Dv] for " + k + ", where Hv divides H", v);
        }
        GraphTensor queries = config.queryLengths();
        GraphTensor lengths = config.keyLengths();
        if (queries != null && lengths != null) {
            GraphChecks.integers(graph, kind, name, "queryLengths", queries, q.dim(0), 1, 1, 1);
            GraphChecks.integers(graph, kind, name, "keyLengths", lengths, q.dim(0), 1, 1, 1);
        }
    }

    private static void lengths(
            SdpaConfig config, int queries, int keys, List<GraphTensor> reads, Description description) {
        length(config.queryLengths(), queries, reads, description);
        length(config.keyLengths(), keys, reads, description);
    }

    private static void length(
            @Nullable GraphTensor length, int attribute, List<GraphTensor> reads, Description description) {
        if (length != null) {
            reads.add(length);
            description.tensor(attribute, length);
        }
    }

    private static long[] output(GraphTensor q, GraphTensor v) {
        return new long[] {q.dim(0), q.dim(1), q.dim(2), v.dim(3)};
    }

    private static GraphTensor like(GraphBuilder graph, String kind, String name, GraphTensor model) {
        return graph.result(kind, name, graph.intermediate(), model.dims(), GraphTensor.ordered(model.dims(), model));
    }

    static void sized(GraphBuilder graph, String kind, String name, String argument, GraphTensor tensor, long... dims) {
        if (!graph.own(kind, name, argument, tensor).hasDims(dims)) {
            throw GraphChecks.refusal(kind, name, argument, Arrays.toString(dims), tensor);
        }
    }
}
