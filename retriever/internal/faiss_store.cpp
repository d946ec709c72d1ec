#include "retriever/internal/faiss_store.h"

#include <faiss/AutoTune.h>
#include <faiss/IndexFlatCodes.h>
#include <faiss/IndexIVFFastScan.h>
#include <faiss/IndexIVFPQ.h>
#include <faiss/IndexIVFPQFastScan.h>
#include <faiss/IndexPQ.h>
#include <faiss/IndexPQFastScan.h>
#include <faiss/VectorTransform.h>
#include <faiss/impl/FaissException.h>
#include <faiss/index_factory.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "core/error.h"
#include "retriever/faiss_version.h"
#include "retriever/internal/parallel_for.h"

// The OpenMP runtime is there in any case, since FAISS needs it; a compiler run without -fopenmp
// has no omp.h.
extern "C" int omp_get_max_threads(void);
extern "C" void omp_set_num_threads(int);

namespace contexture::retriever::internal {
namespace {

// FAISS says what went wrong in its own terms; the user needs to know which setting that was.
template <typename Body>
auto faiss_call(const std::string& factory, const char* action, const Body& body) {
  try {
    return body();
  } catch (const UserError&) {
    throw;
  } catch (const std::exception& error) {  // FaissException, and what parsing numbers throws
    throw UserError(concat("FAISS could not ", action, " an index '", factory, "': ", error.what(),
                           "\nChange retriever.factory; Flat always works."));
  }
}

// Graphs are built by threads that race: on one thread the same vectors give the same graph.
class ThreadsFor {
 public:
  explicit ThreadsFor(const std::string& factory) : before_(omp_get_max_threads()) {
    if (factory.find("HNSW") != std::string::npos || factory.find("NSG") != std::string::npos) {
      omp_set_num_threads(1);
    }
  }
  ~ThreadsFor() { omp_set_num_threads(before_); }

 private:
  int before_;
};

void seed_clusters(faiss::ClusteringParameters& parameters, uint64_t seed) {
  parameters.seed = static_cast<int>(seed & 0x7fffffff);
  parameters.min_points_per_centroid = 1;  // Index warns, once and with advice
}

// The quantisers below `index` that k-means trains: seeds them, or measures what they need.
void visit_quantisers(faiss::Index* index, uint64_t seed, TrainingNeed* need) {
  const FaissParts parts(index);
  const auto clusters = [&](int64_t centroids, faiss::ClusteringParameters& parameters) {
    seed_clusters(parameters, seed);
    if (need) {
      need->min_vectors = std::max(need->min_vectors, centroids);
      need->well_vectors = std::max(need->well_vectors, 39 * centroids);
    }
  };
  const auto product = [&](faiss::ProductQuantizer& pq) {
    clusters(static_cast<int64_t>(pq.ksub), pq.cp);
  };
  if (parts.transform && need) {
    for (const faiss::VectorTransform* link : parts.transform->chain) {
      if (const auto* opq = dynamic_cast<const faiss::OPQMatrix*>(link)) {
        need->min_vectors = std::max<int64_t>(need->min_vectors, opq->pq ? opq->pq->ksub : 256);
      }
    }
  }
  faiss::Index* core = parts.core;
  if (auto* graph = dynamic_cast<faiss::IndexHNSW*>(core)) core = graph->storage;
  if (auto* packed = dynamic_cast<faiss::IndexPQFastScan*>(core)) product(packed->pq);
  // Polysemous codes are minutes of annealing for a search mode that is not used here.
  if (auto* pq = dynamic_cast<faiss::IndexPQ*>(core)) {
    pq->do_polysemous_training = false;
    product(pq->pq);
  }
  if (parts.ivf) {
    clusters(static_cast<int64_t>(parts.ivf->nlist), parts.ivf->cp);
    if (need) need->num_lists = static_cast<int64_t>(parts.ivf->nlist);
    if (auto* packed = dynamic_cast<faiss::IndexIVFPQFastScan*>(core)) product(packed->pq);
    if (auto* ivfpq = dynamic_cast<faiss::IndexIVFPQ*>(core)) {
      ivfpq->do_polysemous_training = false;
      product(ivfpq->pq);
    }
  }
}

}  // namespace

FaissParts::FaissParts(faiss::Index* index) : core(index) {
  if ((refine = dynamic_cast<faiss::IndexRefine*>(core))) core = refine->base_index;
  if ((transform = dynamic_cast<faiss::IndexPreTransform*>(core))) core = transform->index;
  ivf = dynamic_cast<faiss::IndexIVF*>(core);
}

faiss::MetricType faiss_metric(Metric metric) {
  return metric == Metric::kL2 ? faiss::METRIC_L2 : faiss::METRIC_INNER_PRODUCT;
}

std::unique_ptr<faiss::Index> make_faiss_index(const std::string& factory, Metric metric,
                                               int64_t dim) {
  return faiss_call(factory, "make", [&] {
    return std::unique_ptr<faiss::Index>(
        faiss::index_factory(static_cast<int>(dim), factory.c_str(), faiss_metric(metric)));
  });
}

FaissStore::FaissStore(const IndexOptions& options, std::unique_ptr<faiss::Index> index,
                       bool mapped)
    : options_(options), index_(std::move(index)), parts_(index_.get()), mapped_(mapped) {
  try {
    if (parts_.ivf) {
      parts_.ivf->make_direct_map(false);  // a file may bring one; it is not trusted
      parts_.ivf->make_direct_map(true);
    }
    std::vector<float> buffer(index_->d);
    if (size() > 0) vector(0, buffer.data());
  } catch (const faiss::FaissException&) {
    throw UserError(
        concat("An index '", options.factory,
               "' does not give its vectors back, and rankings are "
               "scored from them. Append ,RFlat to the factory string to keep them beside it."));
  }
  if (!options.search.empty()) set_search(options.search);
  prepare_scan();
}

void FaissStore::prepare_scan() {
  if (parts_.refine || parts_.transform) return;
  scan_ = ListScan::make(parts_.ivf, options_.metric == Metric::kCosine);
}

void FaissStore::require_changeable() const {
  CONTEXTURE_REQUIRE(!mapped_, "The index '", options_.factory,
                     "' is read from its file as it is needed, and can't be changed or written. "
                     "Load it into memory.");
}

const float* FaissStore::vector(int64_t row, float* buffer) const {
  index_->reconstruct(row, buffer);
  return buffer;
}

void FaissStore::add(std::span<const float> vectors) {
  require_changeable();
  const ThreadsFor threads(options_.factory);
  faiss_call(options_.factory, "add to", [&] {
    index_->add(static_cast<int64_t>(vectors.size()) / index_->d, vectors.data());
  });
  prepare_scan();
}

void FaissStore::replace(std::span<const int64_t> rows, std::span<const float> vectors) {
  require_changeable();
  auto* codes = dynamic_cast<faiss::IndexFlatCodes*>(parts_.core);
  auto* kept =
      parts_.refine ? dynamic_cast<faiss::IndexFlatCodes*>(parts_.refine->refine_index) : nullptr;
  const bool fixed =
      parts_.ivf ? dynamic_cast<faiss::IndexIVFFastScan*>(parts_.ivf) != nullptr : !codes;
  CONTEXTURE_REQUIRE(!fixed && (!parts_.refine || kept), "An index '", options_.factory,
                     "' cannot change single vectors. Rebuild it, or use Flat or an IVF factory.");
  const auto encode = [&](faiss::IndexFlatCodes& into, const float* x) {
    for (size_t i = 0; i < rows.size(); ++i) {
      into.sa_encode(1, x + i * into.d, into.codes.data() + rows[i] * into.code_size);
    }
  };
  faiss_call(options_.factory, "change vectors of", [&] {
    std::vector<float> moved(vectors.begin(), vectors.end());
    const int64_t n = static_cast<int64_t>(rows.size());
    if (parts_.transform) {
      const float* x = parts_.transform->apply_chain(n, vectors.data());
      const std::unique_ptr<const float[]> owned(x == vectors.data() ? nullptr : x);
      moved.assign(x, x + n * parts_.core->d);
    }
    if (parts_.ivf) {
      static_assert(sizeof(faiss::Index::idx_t) == sizeof(int64_t));
      const std::vector<faiss::Index::idx_t> ids(rows.begin(), rows.end());
      parts_.ivf->update_vectors(static_cast<int>(n), ids.data(), moved.data());
    } else {
      encode(*codes, moved.data());
    }
    if (kept) encode(*kept, vectors.data());
  });
  prepare_scan();
}

// Every query is searched alone: inside FAISS a batch of 20 takes other code paths than one of 19.
std::vector<std::vector<int64_t>> FaissStore::candidates(std::span<const float> queries,
                                                         int64_t k) const {
  const int64_t n = static_cast<int64_t>(queries.size()) / index_->d;
  const int64_t needed = std::min(k, size());
  if (scan_) return scan_->candidates(queries, needed);
  const int64_t wanted = std::min(size(), std::max(4 * k, k + 64));
  std::vector<std::vector<int64_t>> rows(n);
  faiss_call(options_.factory, "search", [&] {
    parallel_for(n, n * size() * index_->d, [&](int64_t q) {
      rows[q] = search_one(queries.data() + q * index_->d, wanted, needed);
    });
  });
  return rows;
}

std::vector<int64_t> FaissStore::search_one(const float* query, int64_t wanted,
                                            int64_t needed) const {
  std::unique_ptr<const float[]> moved;
  const float* x = query;
  if (parts_.transform) {
    x = parts_.transform->apply_chain(1, query);
    if (x != query) moved.reset(x);
  }
  std::vector<float> distances(wanted);
  std::vector<faiss::Index::idx_t> labels(wanted);
  std::vector<int64_t> rows;
  const auto collect = [&] {
    rows.clear();
    for (const faiss::Index::idx_t label : labels) {
      if (label < 0) continue;  // padding
      CONTEXTURE_DATA_REQUIRE(label < size(), "The index returned row ", label, " of ", size(),
                              ": its file is damaged. Build it again.");
      rows.push_back(label);
    }
    return static_cast<int64_t>(rows.size()) >= needed;
  };
  const bool probes_settable = parts_.ivf && !dynamic_cast<faiss::IndexIVFFastScan*>(parts_.ivf);
  if (probes_settable) {
    // The lists nearest to the query may hold too few vectors (with equal centroids all vectors sit
    // in one list and the query probes another): look further until there are enough. All lists
    // hold them all.
    faiss::SearchParametersIVF parameters;
    for (size_t probes = std::max<size_t>(1, parts_.ivf->nprobe);; probes *= 2) {
      parameters.nprobe = std::min(probes, parts_.ivf->nlist);
      parts_.ivf->search(1, x, wanted, distances.data(), labels.data(), &parameters);
      if (collect()) return rows;
      if (probes >= parts_.ivf->nlist) break;
    }
  } else {
    parts_.core->search(1, x, wanted, distances.data(), labels.data());
    if (collect()) return rows;
  }
  rows.resize(size());  // what can't be found by looking is found by looking at everything
  std::iota(rows.begin(), rows.end(), int64_t{0});
  return rows;
}

void FaissStore::set_search(const std::string& parameters) {
  try {
    faiss::ParameterSpace().set_index_parameters(index_.get(), parameters.c_str());
  } catch (const faiss::FaissException& error) {
    throw UserError(concat("FAISS does not take the search parameters '", parameters,
                           "' for an index '", options_.factory, "': ", error.what(),
                           "\nExamples: nprobe=16 for IVF, efSearch=64 for HNSW."));
  }
  options_.search = parameters;
}

std::string without_id_map(const std::string& factory) {
  for (const char* prefix : {"IDMap2,", "IDMap,"}) {
    if (factory.starts_with(prefix)) return factory.substr(std::strlen(prefix));
  }
  for (const char* suffix : {",IDMap2", ",IDMap"}) {
    if (factory.ends_with(suffix)) return factory.substr(0, factory.size() - std::strlen(suffix));
  }
  return factory;
}

TrainingNeed training_need(const std::string& factory, Metric metric, int64_t dim) {
  const auto index = make_faiss_index(factory, metric, dim);
  TrainingNeed need;
  visit_quantisers(index.get(), 0, &need);
  return need;
}

std::unique_ptr<Store> make_faiss_store(const IndexOptions& options, int64_t dim,
                                        std::span<const float> vectors) {
  auto index = make_faiss_index(options.factory, options.metric, dim);
  visit_quantisers(index.get(), options.seed, nullptr);
  // The rotation of an OPQ trains a quantiser of its own; one that we hand in is seeded and silent
  // like the others.
  std::vector<std::unique_ptr<faiss::ProductQuantizer>> inner;
  std::vector<faiss::OPQMatrix*> rotations;
  if (const FaissParts parts(index.get()); parts.transform) {
    for (faiss::VectorTransform* link : parts.transform->chain) {
      auto* opq = dynamic_cast<faiss::OPQMatrix*>(link);
      if (!opq || opq->pq) continue;
      inner.push_back(std::make_unique<faiss::ProductQuantizer>(opq->d_out, opq->M, 8));
      seed_clusters(inner.back()->cp, options.seed);
      opq->pq = inner.back().get();
      rotations.push_back(opq);
    }
  }
  const ThreadsFor threads(options.factory);
  const int64_t n = static_cast<int64_t>(vectors.size()) / dim;
  faiss_call(options.factory, "build", [&] {
    index->train(n, vectors.data());
    index->add(n, vectors.data());
  });
  for (faiss::OPQMatrix* opq : rotations) opq->pq = nullptr;
  return std::make_unique<FaissStore>(options, std::move(index));
}

}  // namespace contexture::retriever::internal

namespace contexture::retriever {

std::string faiss_version() {
  return concat(FAISS_VERSION_MAJOR, ".", FAISS_VERSION_MINOR, ".", FAISS_VERSION_PATCH);
}

}  // namespace contexture::retriever
