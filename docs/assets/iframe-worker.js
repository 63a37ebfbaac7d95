// Pages opened from a folder may start no worker, which the search needs: there, one runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.inside = frame.contentWindow
      const load = src => new Promise((loaded, failed) => {
        const script = this.inside.document.createElement("script")
        Object.assign(script, {src, onload: loaded, onerror: failed})
        this.inside.document.body.append(script)
      })
      this.inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", {data}))
      this.inside.importScripts = (...urls) => urls.reduce((before, each) => before.then(() => load(each)), Promise.resolve())
      this.ready = load(url)
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", {data})))
    }
  }
}
