package dev.chagres.cudnn;

import dev.chagres.bindings.cudnn.Cudnn;
import dev.chagres.internal.Checks;
import java.util.stream.Stream;

/**
 * Adds attention as one operation to graphs.
 *
 * <p>Threading: that of the builder.
 */
final class Sdpa {
    private Sdpa() {}

    static SdpaForward forward(
            GraphBuilder graph, String name, GraphTensor q, GraphTensor k, GraphTensor v, SdpaConfig config) {
        OperationBuilder op =
                new OperationBuilder(graph, "sdpa", name, Cudnn.CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR());
        check(op, q, k, v, config);
        GraphTensor o = op.result(output(q, v), q);
        long[] rows = {q.dim(0), q.dim(1), q.dim(2), 1};
        GraphTensor stats = op.result(".stats", DataType.FLOAT, rows, GraphTensor.rowMajor(rows));
        GraphTensor scale = op.scalar(".scale", 4, config.scale());
        op.reads(Cudnn.CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC(), q)
                .reads(Cudnn.CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC(), k)
                .reads(Cudnn.CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC(), v)
                .writes(Cudnn.CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC(), o)
                .writes(Cudnn.CUDNN_ATTR_OPERATION_SDPA_FWD_STATSDESC(), stats)
                .reads(Cudnn.CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC(), scale)
                .reads(Cudnn.CUDNN_ATTR_OPERATION_SDPA_FWD_SEQ_LEN_QDESC(), config.queryLengths())
                .reads(Cudnn.CUDNN_ATTR_OPERATION_SDPA_FWD_SEQ_LEN_KVDESC(), config.keyLengths());
        op.addRefusedOnGpu(
                Stream.of(q, k, v).anyMatch(tensor -> tensor.type() == DataType.FLOAT),
                "reads memory outside its tensors where q, k or v are FLOAT; make them HALF or BFLOAT16");
        return new SdpaForward(o, stats, null);
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
        OperationBuilder op =
                new OperationBuilder(graph, "sdpaBackward", name, Cudnn.CUDNN_BACKEND_OPERATION_SDPA_BWD_DESCRIPTOR());
        check(op, q, k, v, config);
        long[] dims = output(q, v);
        op.sized("dy", dy, dims);
        op.sized("o", Checks.given("saved", saved).o(), dims);
        GraphTensor stats = saved.stats();
        op.sized("stats", stats, q.dim(0), q.dim(1), q.dim(2), 1);
        GraphTensor dq = op.result(".dq", q.dims(), q);
        GraphTensor dk = op.result(".dk", k.dims(), k);
        GraphTensor dv = op.result(".dv", v.dims(), v);
        GraphTensor scale = op.scalar(".scale", 4, config.scale());
        op.reads(Cudnn.CUDNN_ATTR_OPERATION_SDPA_BWD_DODDESC(), dy)
                .reads(Cudnn.CUDNN_ATTR_OPERATION_SDPA_BWD_QDESC(), q)
                .reads(Cudnn.CUDNN_ATTR_OPERATION_SDPA_BWD_KDESC(), k)
                .reads(Cudnn.CUDNN_ATTR_OPERATION_SDPA_BWD_VDESC(), v)
                .reads(Cudnn.CUDNN_ATTR_OPERATION_SDPA_BWD_ODESC(), saved.o())
                .reads(Cudnn.CUDNN_ATTR_OPERATION_SDPA_BWD_STATSDESC(), stats)
                .reads(Cudnn.CUDNN_ATTR_OPERATION_SDPA_BWD_SCALEDESC(), scale)
                .writes(Cudnn.CUDNN_ATTR_OPERATION_SDPA_BWD_DQDESC(), dq)
                .writes(Cudnn.CUDNN_ATTR_OPERATION_SDPA_BWD_DKDESC(), dk)
                .writes(Cudnn.CUDNN_ATTR_OPERATION_SDPA_BWD_DVDESC(), dv)
                .reads(Cudnn.CUDNN_ATTR_OPERATION_SDPA_BWD_SEQ_LEN_QDESC(), config.queryLengths())
                .reads(Cudnn.CUDNN_ATTR_OPERATION_SDPA_BWD_SEQ_LEN_KVDESC(), config.keyLengths())
                .add();
        return new SdpaGradients(dq, dk, dv, null, null, null);
    }

    private static void check(OperationBuilder op, GraphTensor q, GraphTensor k, GraphTensor v, SdpaConfig config) {
        Checks.given("config", config);
        if (op.own("q", q).rank() != 4) {
            throw op.refusal("q", "[B, H, Sq, D]", q);
        }
        boolean keys =
                op.own("k", k).rank() == 4 && k.dim(0) == q.dim(0) && k.dim(3) == q.dim(3) && q.dim(1) % k.dim(1) == 0;
        if (!keys) {
            throw op.refusal("k", "[B, Hk, Skv, D] for " + q + ", where Hk divides H", k);
        }
        boolean values =
                op.own("v", v).rank() == 4 && v.dim(0) == q.dim(0) && v.dim(2) == k.dim(2) && q.dim(1) % v.dim(1) == 0;
        if (!values) {
            throw op.refusal("v", "[B, Hv, Skv, Dv] for " + k + ", where Hv divides H", v);
        }
        GraphTensor queries = config.queryLengths();
        GraphTensor lengths = config.keyLengths();
        if (queries != null && lengths != null) {
            op.integers("queryLengths", queries, q.dim(0), 1, 1, 1);
            op.integers("keyLengths", lengths, q.dim(0), 1, 1, 1);
        }
    }

    private static long[] output(GraphTensor q, GraphTensor v) {
        return new long[] {q.dim(0), q.dim(1), q.dim(2), v.dim(3)};
    }
}
