#include "retriever/refresh_ranks.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

#include "core/error.h"
#include "core/fault_point.h"
#include "core/signals.h"
#include "core/timing.h"
#include "parallel/board.h"
#include "parallel/executor.h"

namespace contexture::retriever {
namespace {

constexpr double kLookEvery_s = 1.0;  // at the others' signs, and showing one's own
constexpr auto kPause = std::chrono::milliseconds(20);  // between two looks for something to do
constexpr int64_t kDocumentsAtOnce = 64;                // between two signs of life
constexpr int64_t kRowsAtOnce = 1 << 16;                // in one message
constexpr int kTag = 0;
constexpr const char* kStop = "refresh/stop";

// Names on the board.
std::string order(int64_t number) { return concat("refresh/order/", number); }
std::string embedded(int64_t number, int64_t worker) {
  return concat("refresh/embedded/", number, "/", worker);
}
std::string life(int64_t worker) { return concat("refresh/life/", worker); }

Rows share_of(int64_t documents, int64_t worker, int64_t workers) {
  const auto [begin, end] =
      parallel::part_of(documents, {static_cast<int>(worker), static_cast<int>(workers)});
  return {begin, end};
}

Rows common(const Rows& a, const Rows& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

// Calls `move` for messages of `rows`, of a size, in order.
template <typename Move>
void in_messages(const Rows& rows, const Move& move) {
  for (int64_t begin = rows.begin; begin < rows.end; begin += kRowsAtOnce)
    move(Rows{begin, std::min(rows.end, begin + kRowsAtOnce)});
}

// What a training rank keeps.
Rows kept_by(int rank, int64_t documents, const parallel::MeshLayout& mesh, bool sharded) {
  const parallel::Coordinate at = mesh.coordinate(rank);
  if (!sharded || mesh.world_size() == 1) return {0, at.pp == 0 && at.tp == 0 ? documents : 0};
  const std::vector<int> replica = mesh.group(rank, {parallel::Axis::kPp, parallel::Axis::kTp});
  const auto place = std::find(replica.begin(), replica.end(), rank) - replica.begin();
  return kept_rows(documents, {at.dp, mesh.size(parallel::Axis::kDp)},
                   {static_cast<int>(place), static_cast<int>(replica.size())});
}

// A refresh rank at work.
class Worker {
 public:
  Worker(model::Model& model, const Documents& documents, const parallel::Groups& groups,
         const parallel::MeshLayout& training, bool sharded)
      : model_(model),
        documents_(documents),
        all_(*groups.all),
        office_(*groups.office),
        training_(training),
        sharded_(sharded),
        number_(office_.rank() - 1),
        mine_(share_of(documents.size(), number_, office_.size() - 1)) {}

  bool run() {
    for (int64_t next = 1;; ++next) {
      const std::string what = wait_for(order(next));
      if (what == "embed") {
        embed();
        parallel::post(all_, embedded(next, number_), "yes");
      } else if (what == "send") {
        send();
      } else {
        office_.barrier();  // the store stays until all have read this
        return what == "stopped";
      }
    }
  }

 private:
  std::string wait_for(const std::string& name) {
    all_.set_phase("waiting for a refresh");
    for (;;) {
      show_life();
      if (const std::string text = parallel::read(all_, name); !text.empty()) return text;
      std::this_thread::sleep_for(kPause);
    }
  }

  void show_life() {
    if (stop_requested() && !passed_on_) {
      passed_on_ = true;
      parallel::post(all_, kStop, "yes");
    }
    if (beats_ > 0 && now_s() - shown_at_ < kLookEvery_s) return;
    shown_at_ = now_s();
    parallel::post(all_, life(number_), concat(++beats_));
    parallel::read(all_, life(number_));  // throws when a rank has failed
  }

  void embed() {
    all_.set_phase("refresh");
    for (parallel::Parameter* p : document_parameters(model_)) {
      const at::Tensor value = at::empty(p->shape, model_.dtype());
      office_.broadcast(value, 0).wait();
      p->value.detach().copy_(value);
    }
    vectors_ = at::empty({mine_.count(), model_.config().retrieval_width()}, at::kFloat);
    for (int64_t row = mine_.begin; row < mine_.end; row += kDocumentsAtOnce) {
      const int64_t end = std::min(mine_.end, row + kDocumentsAtOnce);
      std::vector<const model::Sequence*> some;
      for (int64_t r = row; r < end; ++r) some.push_back(&documents_.sequence(r));
      vectors_.narrow(0, row - mine_.begin, end - row).copy_(model_.embed("doc", some));
      show_life();
    }
    fault_point("refresh");
  }

  void send() {
    all_.set_phase("refresh");
    for (int rank = 0; rank < training_.world_size(); ++rank) {
      in_messages(common(mine_, kept_by(rank, documents_.size(), training_, sharded_)),
                  [&](const Rows& rows) {
                    all_.send(vectors_.narrow(0, rows.begin - mine_.begin, rows.count()), rank,
                              kTag)
                        .wait();
                  });
    }
    vectors_.reset();
  }

  model::Model& model_;
  const Documents& documents_;
  parallel::Communicator &all_, &office_;
  const parallel::MeshLayout& training_;
  const bool sharded_;
  const int64_t number_;
  const Rows mine_;
  at::Tensor vectors_;
  int64_t beats_ = 0;
  double shown_at_ = 0;
  bool passed_on_ = false;
};

}  // namespace

Rows kept_rows(int64_t documents, parallel::Part replica, parallel::Part in_replica) {
  const auto [first, last] = parallel::part_of(documents, replica);
  const auto [begin, end] = parallel::part_of(last - first, in_replica);
  return {first + begin, first + end};
}

std::vector<parallel::Parameter*> document_parameters(const model::Model& model) {
  const parallel::BlockList& blocks = model.blocks();
  const std::vector<bool> needed = parallel::Executor(blocks).needed_for({"doc.embedding"}, {});
  std::set<const parallel::Parameter*> used;
  for (size_t b = 0; b < blocks.size(); ++b) {
    if (needed[b]) used.insert(blocks[b]->parameters().begin(), blocks[b]->parameters().end());
  }
  std::vector<parallel::Parameter*> out;
  for (const auto& p : model.parameters().all()) {
    if (used.count(p.get()) != 0) out.push_back(p.get());
  }
  return out;
}

RefreshRanks::RefreshRanks(const model::Model& model, parallel::Engine& engine, int64_t documents,
                           double silence_s)
    : model_(&model), engine_(&engine), documents_(documents), silence_s_(silence_s) {
  const parallel::Groups& groups = engine.groups();
  seen_.resize(groups.all->size() - (groups.world ? groups.world->size() : 1));
  groups.all->barrier();
  for (Sign& sign : seen_) sign.at = now_s();
}

void RefreshRanks::tell(const std::string& what) {
  ++told_;
  if (engine_->groups().rank() == 0) parallel::post(*engine_->groups().all, order(told_), what);
}

void RefreshRanks::start() {
  tell("embed");
  for (const parallel::Parameter* p : document_parameters(*model_)) {
    const at::Tensor local =
        engine_->owned(*p) ? engine_->sharding().whole_value(*p) : at::Tensor();
    const at::Tensor whole = engine_->logical(*p, local, model_->dtype());
    if (const auto& office = engine_->groups().office) office->broadcast(whole, 0).wait();
  }
}

at::Tensor RefreshRanks::fetch(Rows mine) {
  parallel::Communicator& all = *engine_->groups().all;
  // All look, so that nobody waits for another in an operation with a deadline meanwhile.
  for (int64_t worker = 0; worker < count(); ++worker) {
    while (parallel::read(all, embedded(told_, worker)).empty()) {
      if (engine_->groups().rank() == 0) told_to_stop();
      std::this_thread::sleep_for(kPause);
    }
  }
  tell("send");
  const at::Tensor out = at::empty({mine.count(), model_->config().retrieval_width()}, at::kFloat);
  const int64_t first = all.size() - count();
  for (int64_t worker = 0; worker < count(); ++worker) {
    in_messages(common(mine, share_of(documents_, worker, count())), [&](const Rows& rows) {
      all.receive(out.narrow(0, rows.begin - mine.begin, rows.count()),
                  static_cast<int>(first + worker), kTag)
          .wait();
    });
  }
  return out;
}

bool RefreshRanks::told_to_stop() {
  if (now_s() - looked_at_ < kLookEvery_s) return stop_;
  looked_at_ = now_s();
  parallel::Communicator& all = *engine_->groups().all;
  stop_ = stop_ || !parallel::read(all, kStop).empty();
  for (int64_t worker = 0; worker < count(); ++worker) {
    const std::string text = parallel::read(all, life(worker));
    Sign& sign = seen_[worker];
    if (text != sign.text) sign = {text, now_s()};
    if (now_s() - sign.at < silence_s_) continue;
    const std::string cause = concat("rank ", all.size() - count() + worker,
                                     ", which refreshes the index, has shown no life for ",
                                     silence_s_, " s (killed, stopped or cut off)");
    all.abort(cause);
    throw DistributedError(concat("rank 0: ", cause));
  }
  return stop_;
}

void RefreshRanks::end(bool stopped) {
  tell(stopped ? "stopped" : "finished");
  if (const auto& office = engine_->groups().office) office->barrier();
}

bool serve_refreshes(model::Model& model, const Documents& documents,
                     const parallel::Groups& groups, const parallel::MeshLayout& training,
                     bool sharded, double timeout_s) {
  groups.all->barrier();
  groups.all->set_deadline(timeout_s);
  return Worker(model, documents, groups, training, sharded).run();
}

}  // namespace contexture::retriever
